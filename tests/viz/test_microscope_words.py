"""What stands beside the cells: the lines of the source, the chips of the lanes, the counts."""

from pathlib import Path

import numpy as np
import pytest
from microscope_pages import Reader, reference

from pa_tutorial.simt import Trace
from pa_tutorial.simt.trace import NO_TURN, SPACES
from pa_tutorial.viz.microscope.data import LANE_COLORS

# One access of each sort: part of the expression, warp, and which of its visits.
PLACES = [
    ("block_table[block_idx]", 3, 0),
    ("load(q_vecs", 2, 40),
    ("logits[token_idx - start_token_idx]", 1, 2),
    ("load_values(v_cache", 0, -1),
    ("out_smem[dst + row_idx]", 3, 1),
    ("shfl_xor_sync", 2, 0),
]


@pytest.fixture
def reader(read_page, reference_html: Path) -> Reader:
    return read_page(reference_html)


def the_trace() -> Trace:
    return reference()[1].trace


@pytest.fixture(params=PLACES, ids=lambda place: place[0])
def here(request: pytest.FixtureRequest, reader: Reader) -> np.ndarray:
    """The records of the instruction at which the page stands."""
    part, warp, visit = request.param
    records = the_trace().only(part, warp=warp).records
    records = records[records.space != SPACES.index("local")]
    number = np.unique(records.instruction)[visit]
    reader.go(int(number))
    return records[records.instruction == number]


def test_the_lines_that_led_here_are_marked_with_their_turns(
    reader: Reader, here: np.ndarray
) -> None:
    """Would catch: a line of another function, a turn of another visit, a mark left over."""
    trace = the_trace()
    sites = [(trace.sites[place], turn) for place, turn in trace.ways[here.way[0]]]
    sites.append((trace.sites[here.place[0]], NO_TURN))
    expected = {(str(s.line), f"turn {n}" if n != NO_TURN else "") for s, n in sites}
    marked = reader.page.locator(".line.around")
    shown = {
        (row.locator(".number").inner_text(), row.locator(".turn").inner_text())
        for row in marked.all()
    }
    assert shown == expected
    innermost = reader.page.locator(".line.now").all()[-1]
    assert innermost.locator(".number").inner_text() == str(sites[-1][0].line)
    loops = [f"{name}: turn {turn}" for name, turn in trace.loops(here.way[0])]
    assert reader.text(".loops").replace(" ◀▶", "\n").split("\n")[: len(loops)] == loops


def test_the_chips_show_who_is_at_work(reader: Reader, here: np.ndarray) -> None:
    """Would catch: lanes at work that look idle, or colours that are not those of the cells."""
    colors = reader.page.evaluate(
        "[...document.querySelectorAll('.chips button')].map((c) => c.style.background)"
    )
    at_work = {*here.lane.tolist()}
    for lane, color in enumerate(colors):
        wanted = LANE_COLORS[lane] if lane in at_work else "#ffffff"
        numbers = [int(wanted[at : at + 2], 16) for at in (1, 3, 5)]
        assert color == f"rgb({', '.join(map(str, numbers))})", lane
    count = f"{len(at_work)} lane{'s' if len(at_work) > 1 else ''}"
    assert f" {count}" in reader.text(".sentence")


def cost(records: np.ndarray, unit: int) -> tuple[int, int]:
    """What an access costs, and the least it could: sectors of 32 bytes, or wavefronts."""
    reach = [np.arange(r.address, r.address + r.num_bytes) for r in records]
    each = np.unique(np.concatenate(reach))
    if unit == 32:
        return len(np.unique(each // 32)), -(-len(each) // 32)
    words = np.unique(each // 4)
    return np.bincount(words % 32).max(), -(-len(words) // 32)


def test_the_costs_are_those_of_the_addresses(reader: Reader) -> None:
    """Would catch: best and real exchanged, a sum that leaves out a warp or counts twice."""
    records = the_trace().records
    numbers = np.unique(records.instruction)[:700]
    sums = {1: np.zeros(2, int), 2: np.zeros(2, int)}  # global, shared
    for number in numbers:
        here = records[np.searchsorted(records.instruction, number) :][:32]
        here = here[here.instruction == number]
        space = int(here.space[0])
        if space in sums:
            last, (real, best) = number, cost(here, 32 if space == 1 else 4)
            sums[space] += real, best
            name = "sector" if space == 1 else "wavefront"
    reader.go(int(last))
    assert f"{real} {name}{'s' if real > 1 else ''} ({best} at best)" in reader.text(".sentence")
    (sectors, least), (wavefronts, ideal) = sums.values()
    assert f"{sectors:,} sectors of global memory ({least:,} at best)" in reader.text(".counts")
    assert f"{wavefronts:,} wavefronts of shared memory ({ideal:,} at best)" in (
        reader.text(".counts")
    )


def test_bytes_of_shared_memory_count_from_its_beginning(read_page, reference_html: Path) -> None:
    """Would catch: two origins, the array's and the memory's, in the words for one element."""
    reader = read_page(reference_html)
    reader.follow(warp=0, lane=17)
    reader.click_line("logits[i] *= inv_sum")
    first = 128 * 2 + 2 * 4 * 4 + 4 * 17  # behind q_vecs and red_smem
    where = f"bytes {first}–{first + 3} of shared memory"
    name = "beginning at shared_mem[17] = logits[17] = out_smem[17]"
    assert reader.about[0] == f"lane 17 of warp 0 reads {where} · {name}"
