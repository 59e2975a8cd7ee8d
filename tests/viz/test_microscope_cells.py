"""The cells that the microscope lights are those of the trace, and they are drawn so."""

from pathlib import Path

import numpy as np
import pytest
from microscope_cells import require_cells
from microscope_pages import (
    reference,
    stops,
)

from pa_tutorial.simt import Trace
from pa_tutorial.viz.microscope.data import LANE_COLORS


def sample(trace: Trace, warp: int | None = None, lane: int | None = None) -> list[int]:
    """Instructions at which a reader stops, one of each kind, array and place."""
    rng = np.random.default_rng(0)
    records = trace.records[np.isin(trace.records.instruction, stops(trace, warp, lane))]
    sorts = np.stack([records.kind, records.array, records.place], axis=1)
    chosen = set()
    for sort in np.unique(sorts, axis=0):
        numbers = np.unique(records.instruction[(sorts == sort).all(axis=1)])
        chosen.add(int(rng.choice(numbers)))
    return sorted(chosen)


def test_cells_of_all_lanes_are_those_of_the_trace(read_page, reference_html: Path) -> None:
    """Would catch: a wrong address, a cell off by one, a wrong colour, a highlight left over."""
    trace, reader = reference()[1].trace, read_page(reference_html)
    numbers = sample(trace)
    assert len({*trace.records.warp[np.isin(trace.records.instruction, numbers)]}) == 4
    for number in numbers:
        reader.go(number)
        require_cells(reader, trace)


@pytest.mark.parametrize(
    ("warp", "lane"),
    [(2, 5), (0, 31), (1, None)],
)
def test_cells_of_one_lane_or_warp_only(
    read_page, reference_html: Path, warp: int, lane: int | None
) -> None:
    """Would catch: cells of other lanes, or memories of what other lanes touched."""
    trace, reader = reference()[1].trace, read_page(reference_html)
    reader.follow(warp=warp, lane=lane)
    for number in sample(trace, warp, lane):
        reader.go(number)
        require_cells(reader, trace, warp, lane)


def test_each_step_goes_to_the_next_cells_and_back(read_page, reference_html: Path) -> None:
    """Would catch: a step that skips or repeats an instruction, or leaves the old cells."""
    trace, reader = reference()[1].trace, read_page(reference_html)
    expected = stops(trace)[:15]
    reader.press("Tab")
    for number in expected:
        assert reader.at == number
        require_cells(reader, trace)
        reader.press("ArrowRight")
    for number in reversed(expected):
        reader.press("ArrowLeft")
        assert reader.at == number
    require_cells(reader, trace)


@pytest.mark.parametrize(("width", "scale"), [(700, 1), (1280, 2), (1920, 1.5)])
def test_cells_fit_on_every_screen(
    read_page, reference_html: Path, width: int, scale: float
) -> None:
    """Would catch: boxes that leave their canvas, or drawing that forgets how sharp a screen is."""
    trace, reader = reference()[1].trace, read_page(reference_html, width=width, scale=scale)
    for part in "load(k_cache", "load_values(v_cache", "load(q_vecs":
        reader.go(int(trace.only(part, warp=3).records.instruction[0]))
        for pane in reader.look():
            for address, lanes, _ in pane["now"] if pane["space"] != "local" else ():
                (within,) = (within for at, *_, within in pane["cells"] if at == address)
                assert LANE_COLORS[lanes[0]] in within
    sizes = "grids => grids.map(({ canvas }) => [canvas.clientWidth, canvas.width])"
    for on_page, of_pixels in reader.page.evaluate(f"({sizes})(microscope.grids)"):
        assert of_pixels == pytest.approx(on_page * scale, abs=1)
    wide = reader.page.evaluate("document.documentElement.scrollWidth")
    assert wide <= width, "nothing hangs over the right edge"
