"""Operates the microscope's page as a reader does, and says what it must show: from the trace."""

import json
from pathlib import Path

import numpy as np

from pa_tutorial.kernels.vectors import vector_loads
from pa_tutorial.simt import Trace
from pa_tutorial.simt.trace import KINDS, SPACES
from pa_tutorial.viz.kernel_runs import REFERENCE, Run, run_v1
from pa_tutorial.viz.microscope.data import LANE_COLORS

EMPTY, INK = "#f2f2f2", "#222222"

# What each pane holds, and the colour at the top of each cell that is seen.
LOOK = """() => {
  const hex = (rgb) => "#" + [...rgb].map((n) => n.toString(16).padStart(2, "0")).join("");
  const seen = microscope.grids.map((grid) => {
    const { width, height } = grid.canvas;
    const copy = new OffscreenCanvas(width, height).getContext("2d", { willReadFrequently: true });
    copy.drawImage(grid.canvas, 0, 0);
    const { data } = copy.getImageData(0, 0, width, height);
    const top = ({ x, y, w }) => 4 * (Math.floor(y + 0.5) * width + Math.floor(x + w / 2));
    const color = (at) => hex(data.slice(at, at + 3));
    const cells = [...Array(grid.perTile).keys()].map((n) => grid.tile * grid.perTile + n);
    const touched = [...grid.first.keys()].filter((cell) => grid.first[cell]);
    return {
      space: grid.space,
      array: grid.shape.array === null ? null : microscope.data.arrays[grid.shape.array].name,
      color: grid.shape.color.toLowerCase(),
      now: [...grid.now].map(([cell, { lanes, write }]) => [grid.address(cell), [lanes, write]]),
      before: touched.filter((c) => grid.first[c] - 1 <= grid.step).map((c) => grid.address(c)),
      cells: cells
        .filter((cell) => grid.exists(cell))
        .map((cell) => [grid.address(cell), color(top(grid.box(cell)))]),
    };
  });
  return JSON.stringify(seen); // Playwright takes its time over many small objects
}"""
PLACE = """([title, cell]) => {
  const grid = microscope.grids.find((g) => g.shape.title.startsWith(title));
  grid.tile = grid.tileOf(cell);
  grid.draw();
  const { x, y, w, h } = grid.box(cell);
  return { x: x + w / 2, y: y + h / 2 };
}"""

Pane = tuple[str, str | None]  # space and array; shared memory is one array, None


class Reader:
    """Somebody who looks at a page. What goes wrong in it is kept in `problems`."""

    def __init__(self, browser, html: Path, width: int = 1280, scale: float = 1) -> None:
        size = {"width": width, "height": 1000}
        self.page = browser.new_page(viewport=size, device_scale_factor=scale)
        self.problems: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda message: self.problems.append(message.text))
        self.page.on("pageerror", lambda error: self.problems.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(html.as_uri())
        self.keyboard = self.page.keyboard

    @property
    def at(self) -> int:
        """The warp instruction at which the page stands, a number as in the trace."""
        return int(self.page.locator(".microscope").get_attribute("data-step"))

    @property
    def about(self) -> list[str]:
        """What it says of the lane that is followed, and of banks."""
        return self.page.locator(".about").all_inner_texts()

    def go(self, instruction: int) -> None:
        move = "n => microscope.go(microscope.recording.number.indexOf(n))"
        self.page.evaluate(move, int(instruction))

    def text(self, part: str) -> str:
        return self.page.locator(part).inner_text()

    def press(self, *keys: str) -> None:
        for key in keys:
            self.keyboard.press(key)

    def tab_to(self, css: str) -> None:
        presses = 0
        while not self.page.evaluate("css => document.activeElement.matches(css)", css):
            self.press("Tab")
            assert (presses := presses + 1) < 80, f"the Tab key does not come to {css}"

    def follow(self, *, warp: int | None = None, lane: int | None = None) -> None:
        if warp is not None:
            self.page.get_by_label("warp", exact=True).select_option(f"warp {warp}")
        if lane is not None:
            self.button(f"lane {lane}").click()

    def button(self, name: str):
        return self.page.get_by_role("button", name=name, exact=True)

    def click_line(self, text: str, times: int = 1) -> None:
        line = self.page.locator(".line.reached", has_text=text).first
        for _ in range(times):
            line.click()

    def find(self, name: str) -> None:
        self.page.get_by_label("find an element").fill(name)
        self.press("Enter")

    def canvas(self, title: str):
        return self.page.locator(f"canvas[aria-label^='{title}']")

    def place(self, title: str, cell: int) -> dict[str, float]:
        """The middle of a cell, counted through the tiles of a pane; its tile is shown first."""
        return self.page.evaluate(PLACE, [title, cell])

    def hover(self, title: str, cell: int) -> list[str]:
        """The lines that appear at the pointer."""
        self.canvas(title).hover(position=self.place(title, cell))
        return self.text(".tip").splitlines()


def reference() -> Run:
    """The kernel at the sizes of vLLM's document, with its vector loads; thread block 0 traced."""
    return run_v1(REFERENCE, loads=vector_loads)


def the_trace() -> Trace:
    return reference().trace


def physical(logical_block: int) -> int:
    return int(reference()["block_tables"][0, logical_block])


def stops(trace: Trace, warp: int | None = None, lane: int | None = None) -> list[int]:
    """The instructions at which a reader stops who follows a warp and a lane."""
    records = trace.records[trace.records.space != SPACES.index("local")]
    return np.unique(followed(records, warp, lane).instruction).tolist()


def touched(trace: Trace, records: np.recarray) -> dict[Pane, tuple[np.ndarray, ...]]:
    """For each pane the elements that some records touch: addresses, lanes, is it a write?"""
    found = {}
    for space, name in {(a.space, None if a.space == "shared" else a.name) for a in trace.arrays}:
        mine = np.array([a.space == space and name in (None, a.name) for a in trace.arrays])
        sizes = [trace.arrays[number].dtype.itemsize for number in np.flatnonzero(mine)]
        part = records[(records.array >= 0) & mine[records.array]]
        unit = min(4, *sizes) if space == "shared" else min(sizes)  # bytes of a cell
        offsets = np.arange(0, part.num_bytes.max(initial=0), unit)
        row, column = (offsets < part.num_bytes[:, None]).nonzero()
        written = part.kind[row] != KINDS.index("read")
        found[space, name] = part.address[row] + offsets[column], part.lane[row], written
    return found


def by_address(*columns: np.ndarray) -> dict[int, list]:
    """Of addresses, lanes, and whether they are written: address -> its lanes, is it written?"""
    found = {}
    for address, lane, write in zip(*(column.tolist() for column in columns), strict=True):
        others, before = found.get(address, ([], False))
        found[address] = [sorted({*others, lane}), before or write]
    return found


def followed(records: np.recarray, warp: int | None, lane: int | None) -> np.recarray:
    """The records of a warp and a lane; None: of all."""
    for field, wanted in (("warp", warp), ("lane", lane)):
        records = records if wanted is None else records[records[field] == wanted]
    return records


def require_cells(
    reader: Reader, trace: Trace, warp: int | None = None, lane: int | None = None
) -> None:
    """What is lit, what was touched before, and the colours of both, against the trace.

    Local arrays are left out: the page shows those of one lane, up to its next instruction.
    """
    at, mine = reader.at, followed(trace.records, warp, lane)
    now = touched(trace, mine[mine.instruction == at])
    before = touched(trace, mine[mine.instruction <= at])
    for pane in json.loads(reader.page.evaluate(LOOK)):
        name = pane["space"], pane["array"]
        lit, past = by_address(*now.pop(name)), {*before[name][0].tolist()}
        assert dict(pane["now"]) == lit, f"{name} at instruction {at}"
        assert {*pane["before"]} == past, f"{name} before instruction {at}"
        visible = dict(pane["cells"])
        assert not lit or visible.keys() & lit, "the tile that is shown is one that is touched"
        for address, shown in visible.items():
            lanes, color = lit.get(address, ((),))[0], pane["color"] if address in past else EMPTY
            color = LANE_COLORS[lanes[0]] if lanes else color
            assert shown == (INK if lane in lanes else color), f"{name}, address {address}"
    assert {space for space, _ in now} <= {"local"}, "all others have a pane"
