"""The microscope's page in a real browser, operated as a reader does: what it answers.

That nothing was asked for and no error written, the fixture `read_page` checks after every test.
"""

import re
from pathlib import Path

import numpy as np
import pytest

from pa_tutorial.kernels.intermediates import SCORES_DONE, WEIGHTS_DONE
from pa_tutorial.paging.layouts import VllmLayout
from pa_tutorial.viz.kernel_runs import REFERENCE, between
from tests.simt.microscope.reader import Reader
from tests.viz.microscope_pages import physical, stops, the_trace

# Sizes of the reference, known apart from it.
ITEMSIZE, BLOCK_SIZE, THREAD_GROUP_SIZE, VEC_SIZE = 2, 16, 2, 4
LAYOUT = VllmLayout(16, 1, head_size=128, block_size=BLOCK_SIZE, dtype=REFERENCE.dtype)
LOAD_K = "k_vec = load("
rest = pytest.mark.rest("the other questions, asked with the keyboard")


def spoken(part: str, block: int, offset: int, element: int) -> str:
    """An element of K or V, as an index of its cache."""
    if part == "K":
        return f"k_cache[{block}, 0, {element // 8}, {offset}, {element % 8}]"
    return f"v_cache[{block}, 0, {element}, {offset}]"


@pytest.fixture
def reader(read_page, reference_html: Path) -> Reader:
    return read_page(reference_html)


def test_the_page_is_one_file_that_may_load_nothing(reader: Reader, reference_html: Path) -> None:
    policy = reader.page.locator("meta[http-equiv=Content-Security-Policy]")
    rules = dict(rule.strip().split(" ", 1) for rule in policy.get_attribute("content").split(";"))
    assert rules.pop("default-src") == "'none'"
    assert {*rules.values()} <= {"'unsafe-inline'", "data:"}
    text = reference_html.read_text(encoding="utf-8")
    assert not [word for word in ("http://", "https://", "@import", "url(") if word in text]
    assert reader.page.title() == "paged_attention_v1 under the microscope"


@pytest.mark.rest(keep=["keys"])
@pytest.mark.parametrize("way", ["clicks on the line", "buttons of the loop", "keys"])
def test_the_page_says_which_bytes_a_lane_reads(reader: Reader, way: str) -> None:
    """Lane 5 of warp 2, in the turn j = 3."""
    if way == "keys":
        reader.press("Tab", "w", "w", "w", *"llllll")
        while "reads k_cache" not in reader.text(".sentence"):
            reader.press("ArrowRight")
        reader.press("n", "n", "n", "n", "N")
    else:
        reader.follow(warp=2, lane=5)
        reader.click_line(LOAD_K, times=4 if way == "clicks on the line" else 1)
        for _ in range(3 if way == "buttons of the loop" else 0):
            reader.button("j: next iteration").click()
    group, offset_in_group = divmod(32 * 2 + 5, THREAD_GROUP_SIZE)
    offset = group % BLOCK_SIZE
    element = (offset_in_group + 3 * THREAD_GROUP_SIZE) * VEC_SIZE
    first = LAYOUT.k_element(physical(2), 0, offset, element) * ITEMSIZE
    assert reader.about[0] == (
        f"lane 5 of warp 2 reads bytes {first:,}–{first + 7:,} of k_cache · token {32 + offset} · "
        f"logical block 2 · physical block {physical(2)} · offset {offset} · KV head 0 · "
        f"element 28–31 · beginning at {spoken('K', physical(2), offset, element)}"
    )
    loops = ["block_idx: turn 0", "j: turn 3"]
    assert [loop for loop in loops if loop not in reader.text(".loops")] == []
    trace = the_trace().only(array="k_cache", warp=2, turns={"block_idx": 0, "j": 3})
    assert {reader.at} == {*trace.records.instruction.tolist()}
    begin = trace.the_array().address + first
    assert reader.lit("K:") == [begin + i * ITEMSIZE for i in range(VEC_SIZE)]


def test_the_page_says_when_and_by_whom_an_element_is_last_written(reader: Reader) -> None:
    """Not the last write of the memory: it is used again. All its accesses are listed."""
    reader.find("logits[17]")
    trace = the_trace()
    numbers = np.unique(trace.records.instruction)  # the page counts them from 1
    (array,) = (a for a in trace.arrays if a.name == "logits")
    address = array.address + 17 * 4
    mine = between(trace, SCORES_DONE, WEIGHTS_DONE).only(array="logits", kind="write").records
    mine = mine[mine.address == address][-1]
    line, number = trace.sites[mine.place].line, np.searchsorted(numbers, mine.instruction) + 1
    last = reader.page.locator(".last", has_text="as logits")
    assert last.inner_text() == (
        f"last written as logits: instruction {number:,}, warp 0 lane 17 (thread 17), line {line}"
    )
    last.get_by_role("button").click()
    assert reader.at == mine.instruction
    assert trace.sources[0].line(line) in reader.text(".line.now >> nth=0")

    records = trace.only(space="shared").records
    here = (records.address < address + 4) & (records.address + records.num_bytes > address)
    positions = np.searchsorted(numbers, records[here].instruction) + 1
    rows = reader.page.locator(".details tr[data-i]")
    assert [text.split("\t")[:4] for text in rows.all_inner_texts()] == [
        [f"{at:,}", str(r.warp), str(r.lane), ("reads", "writes")[r.kind]]
        for r, at in zip(records[here], positions, strict=True)
    ]
    rows.nth(5).click()
    assert reader.at == records[here][5].instruction


@rest
def test_a_name_that_is_not_there_is_explained(reader: Reader) -> None:
    for name in ("logits[256]", "logits", "nothing[3]", "logits[1, 2]"):
        reader.find(name)
        assert re.search(r"there are|has the shape|as in logits\[17\]", reader.text(".details"))


@rest
@pytest.mark.parametrize("part", ["K", "V"])
def test_the_pointer_names_an_element_and_a_click_picks_it(reader: Reader, part: str) -> None:
    per_block = LAYOUT.head_size * BLOCK_SIZE
    element_of = LAYOUT.k_element if part == "K" else LAYOUT.v_element
    for logical, offset, element in ((0, 0, 0), (10, 15, 127)):
        block = physical(logical)
        place = element_of(block, 0, offset, element)
        cell = (logical - block) * per_block + place
        assert reader.hover(f"{part}:", cell)[:2] == [
            spoken(part, block, offset, element),
            f"token {logical * BLOCK_SIZE + offset} · logical block {logical} · physical block "
            f"{block} · offset {offset} · KV head 0 · element {element}",
        ]
        reader.canvas(f"{part}:").click(position=reader.place(f"{part}:", cell))
        said = reader.text(".details .caption")
        assert said.startswith(f"{spoken(part, block, offset, element)}: ")


STEPS = {  # keys -> the place among all stops
    "ArrowRight": 1,  # at once: nobody has clicked
    "End ArrowRight": -1,
    "End Shift+ArrowLeft ArrowLeft": -12,
    "Home ArrowLeft": 0,
    "Home Shift+ArrowRight ArrowRight": 11,
    "Home f End Escape ArrowRight": 1,  # in the field, keys are no commands
}


@rest
def test_keys_step_and_stop_at_the_ends(reader: Reader) -> None:
    expected = stops(the_trace())
    reader.go(expected[0])
    for keys, place in STEPS.items():
        reader.press(*keys.split())
        assert reader.at == expected[place], keys


@rest
def test_source_panes_buttons_and_chips_need_no_mouse(reader: Reader) -> None:
    reader.press("f")
    reader.keyboard.type("logits[17]")
    reader.press("Enter", "Escape")  # the field is left, the element stays
    assert reader.text(".details .caption").startswith("logits[17]: touched ")
    reader.press("Escape")
    assert "logits[17]" not in reader.text(".details")
    reader.tab_to("canvas[aria-label^='K:']")
    reader.press("ArrowRight", "ArrowRight", "ArrowDown", "ArrowDown", "ArrowLeft", "ArrowUp")
    # the row below the first: piece 1, its first element
    assert "offset 0 · KV head 0 · element 8" in reader.text(".tip")
    reader.press("Enter", "Tab")
    said = reader.text(".details .caption")
    assert said.startswith(f"{spoken('K', physical(0), 0, 8)}: touched")
    assert not reader.page.locator(".tip").is_visible()

    reader.tab_to(".chips button:nth-child(1)")
    reader.press(*["ArrowRight"] * 6, "ArrowLeft", " ", "Home")
    assert reader.text(".chips .chosen") == "5"
    reader.tab_to(".listing ~ .listing")  # of the device functions
    reader.press("ArrowDown")
    while LOAD_K not in reader.text(".line.cursor"):
        reader.press("ArrowDown")
    reader.press("Enter")
    assert "reads k_cache" in reader.text(".sentence")
