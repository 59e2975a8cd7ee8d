"""Where clicks, keys and buttons of the microscope lead, and where they cannot."""

from pathlib import Path

import numpy as np
import pytest
from numba import cuda, float32

from pa_tutorial.simt import launch
from pa_tutorial.simt.trace import SPACES
from pa_tutorial.viz.microscope import microscope


@cuda.jit
def three_parts(out, a):
    s = cuda.shared.array(32, float32)
    mine = cuda.local.array(2, float32)
    other = cuda.local.array(2, float32)
    t = cuda.threadIdx.x
    lane = t % 32
    mine[0] = a[t]
    if t < 32:
        s[lane] = mine[0]
    for i in range(3):
        mine[1] = lane + i
        other[0] = i
    cuda.syncthreads()
    out[t] = s[lane] + mine[1]


@pytest.fixture
def parts(read_page, tmp_path: Path):
    arrays = np.zeros(64, np.float32), np.zeros(64, np.float32)
    report = launch(three_parts, 1, 64, *arrays, trace=0)
    microscope(report).save_html(tmp_path / "parts.html")
    reader = read_page(tmp_path / "parts.html")
    reader.trace = report.trace
    return reader


def test_a_line_that_cannot_be_reached_says_why(parts) -> None:
    """Would catch: a click that does nothing and says nothing."""
    parts.follow(warp=1)
    at = parts.at
    parts.click_line("s[lane] = mine[0]")
    assert parts.text(".notice").startswith("warp 1 does not come to line")
    assert parts.at == at
    parts.click_line("mine[1] = lane + i")
    assert "local arrays only" in parts.text(".notice")
    parts.press("ArrowRight")
    assert parts.text(".notice") == ""


def test_a_line_that_lies_behind_us_is_found_too(parts) -> None:
    """Would catch: a click on an earlier line that is ignored at the end."""
    parts.press("End")
    parts.click_line("mine[0] = a[t]")
    assert parts.at == parts.trace.only(array="a").records.instruction.min()


def test_a_lane_that_is_let_go_gives_all_warps_back(parts) -> None:
    """Would catch: a filter that stays, though nobody asked for it."""
    warps = parts.page.get_by_label("warp", exact=True)
    parts.follow(lane=3)
    assert warps.input_value() == "0"
    parts.follow(lane=3)
    assert warps.input_value() == ""
    parts.follow(warp=1)
    parts.follow(lane=3)
    parts.follow(lane=3)
    assert warps.input_value() == "1"


def test_a_page_that_opens_with_a_lane_lets_it_go(read_page, tmp_path: Path) -> None:
    """Would catch: no step that anybody may stop at, once the lane is let go."""
    arrays = np.zeros(64, np.float32), np.zeros(64, np.float32)
    report = launch(three_parts, 1, 64, *arrays, trace=0)
    at = report.trace.only(array="a", warp=1)
    microscope(report, at=at, lane=3).save_html(tmp_path / "lane.html")
    reader = read_page(tmp_path / "lane.html")
    assert reader.page.get_by_label("warp", exact=True).input_value() == "1"
    reader.follow(lane=3)
    assert reader.page.get_by_label("warp", exact=True).input_value() == ""
    warps = {int(report.trace.only(instruction=reader.at).records.warp[0])}
    for _ in range(4):
        before = reader.at
        reader.press("ArrowRight")
        assert reader.at > before
        warps.add(int(report.trace.only(instruction=reader.at).records.warp[0]))
    assert warps == {0, 1}


def test_two_local_arrays_at_one_byte_are_two(parts) -> None:
    """Would catch: a list that still shows the element of another array."""
    parts.press("End")
    lists = parts.page.evaluate(
        """() => microscope.data.arrays.flatMap((array, number) => {
          if (array.space !== "local") return [];
          microscope.pick({ space: "local", address: 0, bytes: 4,
            owner: { warp: 0, lane: 0, array: number } });
          return [microscope.details.innerText.split("\\n")[0]];
        })"""
    )
    assert lists == [
        "mine[0]: touched 2 times, every lane counted",
        "other[0]: touched 3 times, every lane counted",
    ]


def test_jumping_stops_the_play(parts) -> None:
    """Would catch: a page that plays on from where one has just jumped to."""
    parts.button("play and stop (space)").click()
    parts.click_line("out[t] = s[lane]")
    at = parts.at
    assert "play" in parts.button("play and stop (space)").inner_text()
    parts.page.wait_for_timeout(700)
    assert parts.at == at


def test_the_time_line_says_what_is_under_the_pointer(parts) -> None:
    """Would catch: bars that are drawn beside their instruction; a gap that leads elsewhere."""
    box = parts.page.locator(".timeline").bounding_box()
    numbers = np.unique(parts.trace.records.instruction).tolist()
    warps = [int(parts.trace.only(instruction=n).records.warp[0]) for n in numbers]
    canvas = parts.page.locator(".timeline")
    for place, (number, warp) in enumerate(zip(numbers, warps, strict=True)):
        for part in (0.1, 0.9):
            x = 48 + (place + part) / len(numbers) * (box["width"] - 52)
            canvas.click(position={"x": x, "y": 13 * warp + 6})
            assert parts.at == number
            assert canvas.get_attribute("title").startswith(
                f"warp {warp}: instruction {place + 1},"
            )


def test_the_bars_of_the_time_line_stand_where_clicks_find_them(parts) -> None:
    """Would catch: bars half an instruction beside their place."""
    colors = {"global": "#e69f00", "shared": "#cc79a7", "local": "#d9d9d9", "none": "#0072b2"}
    numbers = np.unique(parts.trace.records.instruction).tolist()
    for place, number in enumerate(numbers):
        parts.go(numbers[place - len(numbers) // 2])  # the cursor is elsewhere
        record = parts.trace.only(instruction=number).records[0]
        row = parts.pixels(".timeline", 13 * int(record.warp) + 6)
        for part in (0.15, 0.85):
            x = int(48 + (place + part) / len(numbers) * (len(row) - 52))
            assert row[x] == colors[SPACES[record.space]], (place, part)


def test_a_write_by_an_expression_without_a_name(read_page, tmp_path: Path) -> None:
    """Would catch: an element that was "last written as cuda"."""

    @cuda.jit
    def histogram(bins, a):
        t = cuda.threadIdx.x
        cuda.atomic.add(bins, a[t] % 4, 1)

    arrays = np.zeros(4, np.int32), np.arange(40, dtype=np.int32)
    report = launch(histogram, 1, 40, *arrays, trace=0)
    microscope(report).save_html(tmp_path / "histogram.html")
    reader = read_page(tmp_path / "histogram.html")
    reader.find("bins[3]")
    assert reader.text(".details .caption") == "bins[3]: touched 10 times, every lane counted"
    assert reader.text(".last").startswith("last written: instruction 4, warp 1 lane 7 (thread 39)")
