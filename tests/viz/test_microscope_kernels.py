"""Other kernels under the microscope, in a real browser; and its findings."""

import math
from pathlib import Path

import numpy as np
import pytest
from microscope_cells import require_cells
from microscope_pages import ALARM, INK, stops
from numba import cuda, float32, float64, int16, int32

from pa_tutorial.simt import Report, launch
from pa_tutorial.viz.microscope import microscope


@cuda.jit
def patchwork(out, columns, backwards, cube, count, steps):
    """Views of all kinds, a warp that is not full, loops of different lengths, shuffles."""
    t = cuda.threadIdx.x
    doubles = cuda.shared.array(40, float64)
    shorts = cuda.shared.array((2, 20), int16)
    mine = cuda.local.array((2, 3), float32)
    doubles[t] = columns[t % 5, t // 5]
    shorts[t // 20, t % 20] = backwards[t]
    cuda.syncthreads()
    left = steps[t]
    while left > 0:
        mine[left % 2, left % 3] = cube[left % 2, t % 3, 1]
        left -= 1
    value = int32(shorts[1 - t // 20, t % 20])
    if t < 32:
        value = cuda.shfl_down_sync(0xFFFFFFFF, value, 3)
    cuda.atomic.add(count, t % 2, 1)
    if t % 2 == 0:
        out[t, 1] = doubles[39 - t] + value + mine[1, 1]


def run_patchwork() -> Report:
    columns = np.arange(45.0).reshape(9, 5).T  # strides 1 and 5 items
    backwards = np.arange(80, dtype=np.int8)[::-2]
    cube = np.arange(48, dtype=np.float32).reshape(2, 6, 4)[:, ::-2, 1:]
    count, steps = np.zeros(2, np.int32), np.arange(40, dtype=np.int32) % 5
    out = np.zeros((40, 3))
    arguments = out, columns, backwards, cube, count, steps
    return launch(patchwork, 1, 40, *arguments, trace=0, checks=())


@pytest.mark.parametrize(("warp", "lane"), [(None, None), (None, 6), (1, None), (1, 3)])
def test_any_kernel_can_be_looked_at(
    read_page, tmp_path: Path, warp: int | None, lane: int | None
) -> None:
    """Would catch: panes that only suit the paged kernel (flat arrays, full warps, for loops)."""
    report = run_patchwork()
    microscope(report).save_html(tmp_path / "patchwork.html")
    reader = read_page(tmp_path / "patchwork.html")
    reader.follow(warp=warp, lane=lane)
    if lane is not None and warp is None:
        warp = 0  # a lane is one of the warp at which the page stands
    for number in stops(report.trace, warp, lane):
        reader.go(number)
        require_cells(reader, report.trace, warp, lane)


def test_elements_of_views_have_their_index(read_page, tmp_path: Path) -> None:
    """Would catch: an index that forgets a stride, its sign, or where a view begins."""
    report = run_patchwork()
    microscope(report).save_html(tmp_path / "patchwork.html")
    reader = read_page(tmp_path / "patchwork.html")
    for array in report.trace.arrays:
        if array.space != "global":
            continue
        names = {}
        for index in np.ndindex(array.shape):
            items = sum(i * s for i, s in zip(index, array.strides, strict=True))
            address = array.address + items * array.dtype.itemsize
            names[address] = f"{array.name}[{', '.join(map(str, index))}]"
        assert len(names) == math.prod(array.shape)
        cells = reader.page.evaluate(
            """(name) => {
              const grid = microscope.grids.find((g) => g.shape.title.startsWith(`${name},`));
              const count = grid.perTile * grid.shape.tiles.length;
              return [...Array(count).keys()].map((cell) => grid.address(cell));
            }""",
            array.name,
        )
        within = [c for c, at in enumerate(cells) if min(names) <= at <= max(names)]
        for cell in within[:: 1 + len(within) // 8]:
            words = reader.hover(f"{array.name},", cell)
            assert words[0] == names.get(cells[cell], "no element begins here")


def test_a_shuffle_says_from_whom(read_page, tmp_path: Path) -> None:
    """Would catch: the lane that reads taken for the lane that is read."""
    report = run_patchwork()
    microscope(report, lane=4).save_html(tmp_path / "patchwork.html")
    reader = read_page(tmp_path / "patchwork.html")
    reader.go(int(report.trace.only(kind="shuffle").records.instruction[0]))
    assert "lane 4 reads from lane 7" in reader.text(".sentence")
    chips = reader.text(".chips").split()
    assert chips[:29] == [f"{lane}←{lane + 3}" for lane in range(29)]


# Findings --------------------------------------------------------------------------------------


@cuda.jit
def triangle(a):
    for i in range(3):
        for j in range(i + 1):
            a[i, j] = cuda.threadIdx.x


def test_a_turn_stays_in_its_turn_of_the_loop_around(read_page, tmp_path: Path) -> None:
    """Would catch: a jump into another turn of the outer loop, where the inner one is longer."""
    report = launch(triangle, 1, 1, np.zeros((3, 3), np.float32), trace=0)
    microscope(report).save_html(tmp_path / "triangle.html")
    reader = read_page(tmp_path / "triangle.html")
    order = [(i, j) for i in range(3) for j in range(i + 1)]
    for start, button, end in (
        ((0, 0), "j: the next turn", (0, 0)),
        ((0, 0), "i: the next turn", (1, 0)),
        ((2, 1), "j: the next turn", (2, 2)),
        ((2, 2), "j: the turn before", (2, 1)),
        ((1, 1), "i: the turn before", (0, 0)),
    ):
        reader.go(order.index(start))
        reader.button(button).click()
        assert order[reader.at] == end, (start, button)


@cuda.jit
def races(out, a):
    s = cuda.shared.array(64, float32)
    t = cuda.threadIdx.x
    s[t] = a[cuda.blockIdx.x, t]
    if cuda.blockIdx.x == 0:
        cuda.syncthreads()
    if t > 4:  # lane 5 is the first to find it
        out[cuda.blockIdx.x, t] = s[68 - t]


@pytest.mark.parametrize("traced", [0, 1])
def test_a_race_leads_to_its_two_accesses(read_page, tmp_path: Path, traced: int) -> None:
    """Would catch: buttons exchanged, a lane of the wrong party, a jump outside the trace."""
    arguments = np.zeros((2, 64), np.float32), np.ones((2, 64), np.float32)
    report = launch(races, 2, 64, *arguments, collect=True, trace=traced)
    (race,) = report.findings
    assert race.check == "race"
    microscope(report).save_html(tmp_path / "race.html")
    reader = read_page(tmp_path / "race.html")
    assert reader.text(".finding pre") == str(race)
    if traced == 0:  # the race is in thread block 1
        assert reader.button("not in this thread block").is_disabled()
        return
    records = report.trace.only(array="s").records
    for button, party in (("first", race.other_thread), ("second", race.thread)):
        reader.button(f"to the {button} access").click()
        here = records[records.instruction == reader.at]
        (mine,) = here[32 * here.warp + here.lane == party]
        assert mine.address == race.index[0] * 4
        assert reader.text(".chips .marked") == str(party % 32)
        verb = (
            "writes" if (button == "first") == (race.site.line > race.other_site.line) else "reads"
        )
        assert reader.about[0].startswith(f"lane {party % 32} of warp {party // 32} {verb}")


def test_without_findings_it_says_what_was_checked(read_page, tmp_path: Path) -> None:
    """Would catch: a clean report that looks like one that was never checked."""
    microscope(run_patchwork()).save_html(tmp_path / "patchwork.html")
    reader = read_page(tmp_path / "patchwork.html")
    assert reader.text(".findings") == "Findings: none (checked nothing)."


def test_nothing_lies_behind_the_end_of_an_array(read_page, tmp_path: Path) -> None:
    """Would catch: cells of the last tile that belong to the next array."""
    report = run_patchwork()
    microscope(report).save_html(tmp_path / "patchwork.html")
    reader = read_page(tmp_path / "patchwork.html")
    shown = reader.page.evaluate(
        """() => microscope.grids.filter((g) => g.space === "global").map((grid) => [
          microscope.data.arrays[grid.shape.array].name,
          [...grid.first.keys()].filter((cell) => grid.exists(cell)).map((c) => grid.address(c)),
        ])"""
    )
    sizes = {array.name: array for array in report.trace.arrays}
    for name, addresses in shown:
        array = sizes[name]
        steps = [s * (n - 1) for s, n in zip(array.strides, array.shape, strict=True)]
        first = array.address + sum(min(s, 0) for s in steps) * array.dtype.itemsize
        last = array.address + sum(max(s, 0) for s in steps) * array.dtype.itemsize
        assert first <= min(addresses)
        assert max(addresses) <= last, name


@cuda.jit
def scattered(out, a):
    t = cuda.threadIdx.x
    out[t] = a[512 * t]


def test_every_tile_that_is_touched_is_marked(read_page, tmp_path: Path) -> None:
    """Would catch: an instruction that touches four tiles and seems to touch one; counts of
    the best that are those of the real one."""
    report = launch(scattered, 1, 4, np.zeros(4), np.zeros(2048), trace=0)
    microscope(report).save_html(tmp_path / "scattered.html")
    reader = read_page(tmp_path / "scattered.html")
    row = reader.pixels("canvas[aria-label^='a,']", 17)
    marks = [row[int((tile + 0.5) * len(row) / 4)] for tile in range(4)]
    assert marks == [ALARM] * 4
    assert "4 sectors (1 at best)" in reader.text(".sentence")
    assert "4 sectors of global memory (1 at best)" in reader.text(".counts")


def test_the_time_line_has_its_cursor_where_we_are(read_page, tmp_path: Path) -> None:
    """Would catch: a cursor that is drawn elsewhere."""
    report = run_patchwork()
    microscope(report).save_html(tmp_path / "patchwork.html")
    reader = read_page(tmp_path / "patchwork.html")
    numbers = np.unique(report.trace.records.instruction).tolist()
    for number in (numbers[0], numbers[len(numbers) // 2], numbers[-1]):
        reader.go(number)
        row = reader.pixels(".timeline", 2 * 13 + 1)  # below the warps
        dark = [x for x, color in enumerate(row) if color == INK]
        box = reader.page.locator(".timeline").bounding_box()
        place = (numbers.index(number) + 0.5) / len(numbers)
        assert 1 <= len(dark) <= 3
        assert abs(np.mean(dark) + 0.5 - (48 + place * (box["width"] - 52))) <= 1.5
