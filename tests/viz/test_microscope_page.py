"""The microscope's page in a real browser, operated as a reader does: what it answers."""

import time
from dataclasses import replace
from pathlib import Path
from statistics import median

import pytest
from microscope_pages import ALARM, TIME_STEPS, WHEN_DRAWN, Reader, reference
from microscope_sizes import (
    BLOCK_SIZE,
    ITEMSIZE,
    LAYOUT,
    NUM_THREADS,
    NUM_VECS_PER_THREAD,
    THREAD_GROUP_SIZE,
    VEC_SIZE,
    physical,
    position,
)

from pa_tutorial.kernels.intermediates import SUM_DONE, WEIGHTS_DONE
from pa_tutorial.kernels.vectors import vector_loads
from pa_tutorial.viz.kernel_runs import REFERENCE, between, prepare_v1
from pa_tutorial.viz.microscope import microscope
from pa_tutorial.viz.microscope.paged_panes import paged_panes

LOAD_K, LOAD_Q_VEC = "load_k(", "load_q_vec("


@pytest.fixture
def reader(read_page, reference_html: Path) -> Reader:
    return read_page(reference_html)


def test_the_page_is_one_file_that_may_load_nothing(reader: Reader, reference_html: Path) -> None:
    """Would catch: a script, font or picture from elsewhere. (That nothing was asked for and no
    error written, the fixture checks at the end of every test.)"""
    policy = reader.page.locator("meta[http-equiv=Content-Security-Policy]").get_attribute(
        "content"
    )
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules.pop("default-src") == "'none'"
    assert {*rules.values()} <= {"'unsafe-inline'", "data:"}
    text = reference_html.read_text(encoding="utf-8")
    assert not [word for word in ("http://", "https://", "@import", "url(") if word in text]
    assert reader.page.title() == "paged_attention_kernel under the microscope"


# Three questions -------------------------------------------------------------------------------


def ask_for_k(reader: Reader) -> None:
    reader.follow(warp=2, lane=5)
    reader.click_line(LOAD_K, times=4)  # j = 0, 1, 2, 3


def ask_for_q(reader: Reader, ii: int = 3) -> None:
    reader.follow(warp=2, lane=5)
    reader.click_line(LOAD_Q_VEC, times=ii + 1)


def bytes_of_k(warp: int, lane: int, j: int) -> tuple[int, list[int]]:
    """The token, and the bytes of K that a lane reads for it in the warp's first block."""
    group, offset_in_group = divmod(32 * warp + lane, THREAD_GROUP_SIZE)
    vec, offset = offset_in_group + j * THREAD_GROUP_SIZE, group % BLOCK_SIZE
    elements = range(vec * VEC_SIZE, (vec + 1) * VEC_SIZE)
    places = [LAYOUT.k_element(physical(warp), 0, offset, e) * ITEMSIZE for e in elements]
    return warp * BLOCK_SIZE + offset, [b for place in places for b in (place, place + 1)]


@pytest.mark.parametrize("way", ["clicks on the line", "buttons of the loop", "keys"])
def test_which_bytes_does_lane_5_of_warp_2_read(reader: Reader, way: str) -> None:
    """Would catch: a turn counted from 1, an address from a wrong start, another lane's bytes."""
    if way == "clicks on the line":
        ask_for_k(reader)
    elif way == "buttons of the loop":
        reader.follow(warp=2, lane=5)
        reader.click_line(LOAD_K)
        for turn in range(3):
            assert f"j: turn {turn}" in reader.text(".loops")
            reader.button("j: the next turn").click()
    else:
        reader.press("Tab", "w", "w", "w", *"llllll")
        while "reads k_cache" not in reader.text(".sentence"):
            reader.press("ArrowRight")
        reader.press("n", "n", "n", "n", "N")
    token, wanted = bytes_of_k(2, 5, 3)
    assert wanted == [*range(wanted[0], wanted[0] + 8)], "one vec of 8 bytes"
    block = physical(2)
    assert reader.about[0] == (
        f"lane 5 of warp 2 reads bytes {wanted[0]:,}–{wanted[-1]:,} of k_cache · token {token} · "
        f"logical block 2 · physical block {block} · offset {token % 16} · KV head 0 · "
        f"element 28–31 · beginning at k_cache[{wanted[0] // ITEMSIZE}]"
    )
    loops = ["block_idx: turn 0", "i: turn 0", "j: turn 3"]
    assert [loop for loop in loops if loop not in reader.text(".loops")] == []
    turns = {"block_idx": 0, "j": 3}
    trace = reference()[1].trace.only(array="k_cache", warp=2, turns=turns)
    assert {reader.at} == {*trace.records.instruction.tolist()}


def test_the_buttons_of_a_loop_go_one_turn_and_stop_at_its_ends(reader: Reader) -> None:
    """Would catch: a turn of another loop, or of the next visit of the same loop."""
    trace = reference()[1].trace.only(array="k_cache", warp=1)
    reader.follow(warp=1)
    reader.click_line(LOAD_K)
    for turn in [*range(NUM_VECS_PER_THREAD), NUM_VECS_PER_THREAD - 1]:
        here = trace.only(turns={"j": turn, "block_idx": 0}).records.instruction
        assert {*here.tolist()} == {reader.at}
        reader.button("j: the next turn").click()
    reader.button("j: the turn before").click()
    reader.button("block_idx: the next turn").click()
    assert "block_idx: turn 1" in reader.text(".loops")
    assert reader.at == trace.only(turns={"block_idx": 1}).records.instruction[0]


@pytest.mark.parametrize("ii", [3, 12])
def test_which_lanes_share_a_bank_when_q_vecs_is_read(reader: Reader, ii: int) -> None:
    """Would catch: banks of one byte or of 8 bytes, lanes of one word called a conflict."""
    ask_for_q(reader, ii)
    words: dict[int, dict[int, list[int]]] = {}  # bank -> word -> lanes, of q_vecs[r, ii, :]
    for lane in range(32):
        row = lane % THREAD_GROUP_SIZE
        first = (row * NUM_VECS_PER_THREAD + ii) * VEC_SIZE * ITEMSIZE
        for word in range(first // 4, (first + VEC_SIZE * ITEMSIZE) // 4):
            words.setdefault(word % 32, {}).setdefault(word, []).append(lane)
    banks = sorted(words)
    assert banks == [2 * ii, 2 * ii + 1]
    even, odd = [*range(0, 32, 2)], [*range(1, 32, 2)]
    assert all([*lanes.values()] == [even, odd] for lanes in words.values())
    where = f"banks {banks[0]}, {banks[1]}"
    assert reader.about[1:] == [
        f"{where}: a word for lanes 0, 2, …, 30; another for lanes 1, 3, …, 31",
        f"with lane 5 in {where}: "
        "the same word for lanes 1, 3, …, 31; another one for lanes 0, 2, …, 30",
    ]
    assert f"ii: turn {ii}" in reader.text(".loops")
    assert (
        "reads q_vecs, as load(q_vecs[i], 0) · 32 lanes, 8 bytes each · 2 wavefronts (1 at best)"
        in (reader.text(".sentence"))
    )
    assert red_banks(reader) == banks


def red_banks(reader: Reader) -> list[int]:
    """Those whose number over shared memory is drawn on red."""
    colors = reader.page.evaluate(
        """() => {
          const grid = microscope.grids.find(({ banks }) => banks);
          const { width, height } = grid.canvas;
          const options = { willReadFrequently: true };
          const copy = new OffscreenCanvas(width, height).getContext("2d", options);
          copy.drawImage(grid.canvas, 0, 0);
          return [...Array(32).keys()].map((bank) => {
            const { x } = grid.box(bank * grid.run);
            const { data } = copy.getImageData(Math.ceil(x), grid.top - 14, 4, 12);
            return [...Array(4 * 12).keys()].map((n) => [...data.slice(4 * n, 4 * n + 3)]);
          });
        }"""
    )
    red = [int(ALARM[at : at + 2], 16) for at in (1, 3, 5)]
    return [bank for bank, pixels in enumerate(colors) if red in pixels]


def test_when_does_logits_17_get_its_final_value_and_from_whom(reader: Reader) -> None:
    """Would catch: the last write of the memory (it is used again) taken for that of logits."""
    reader.find("logits[17]")
    thread, trace = 17 % NUM_THREADS, reference()[1].trace
    weights = between(trace, SUM_DONE, WEIGHTS_DONE).only(kind="write")
    mine = weights.records[weights.threads == thread][0]
    when, line = int(mine.instruction), trace.sites[mine.place].line
    last = reader.page.locator(".last", has_text="as logits")
    assert last.inner_text() == (
        f"last written as logits: instruction {position(when):,}, warp 0 lane {thread} "
        f"(thread {thread}), line {line}"
    )
    last.get_by_role("button").click()
    assert reader.at == when
    assert trace.sources[0].line(line) in reader.text(".line.now >> nth=0")
    assert f"Instruction {position(when):,} of " in reader.text(".sentence")


def test_the_history_of_an_element_has_every_access(reader: Reader) -> None:
    """Would catch: an access left out, one to a neighbour, or a row that leads elsewhere."""
    trace = reference()[1].trace
    array = next(a for a in trace.arrays if a.name == "shared_mem")
    address, records = array.address + 17 * 4, trace.only(space="shared").records
    mine = records[
        (records.address < address + 4) & (records.address + records.num_bytes > address)
    ]
    reader.find("logits[17]")
    rows = reader.page.locator(".details tr[data-i]")
    shown = [text.split("\t")[:5] for text in rows.all_inner_texts()]
    assert shown == [
        [
            f"{position(r.instruction):,}",
            str(r.warp),
            str(r.lane),
            "writes" if r.kind else "reads",
            str(trace.sites[r.place].line),
        ]
        for r in mine
    ]
    rows.nth(5).click()
    assert reader.at == mine[5].instruction
    assert rows.nth(5).get_attribute("class") == "now"


@pytest.mark.parametrize("name", ["logits[256]", "logits", "nothing[3]", "logits[1, 2]"])
def test_a_name_that_is_not_there_is_explained(reader: Reader, name: str) -> None:
    """Would catch: a search that stays silent, or breaks the page."""
    reader.find(name)
    said = reader.text(".details")
    assert any(words in said for words in ("there are", "has the shape", "as in logits[17]"))


# Speed ----------------------------------------------------------------------------------------


def test_context_256_opens_in_2_seconds_and_steps_at_once(read_page, tmp_path: Path) -> None:
    """Would catch: a page that draws all it knows at every step, or data that grows too large."""
    problem = replace(REFERENCE, seq_lens=(256,))
    prepared = prepare_v1(**vars(problem.paged("vllm")), loads=vector_loads)
    report = prepared.simulate(trace=(0, 0, 0))
    seconds, steps = [], []
    for number in range(3):
        start = time.process_time()
        path = tmp_path / f"{number}.html"
        microscope(report, panes=paged_panes(prepared)).save_html(path)
        in_python = time.process_time() - start
        reader = read_page(path)
        seconds.append(in_python + reader.page.evaluate(WHEN_DRAWN) / 1000)
        steps.append(median(reader.page.evaluate(TIME_STEPS, 30)))
    print(f"opens in {min(seconds):.2f} s, a step takes {min(steps):.1f} ms")
    assert min(seconds) < 2
    assert min(steps) < 50
