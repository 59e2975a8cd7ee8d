"""Operates the microscope's page as a reader does, and says what it must show: from the trace."""

import json
from collections import defaultdict
from functools import cache
from pathlib import Path

import numpy as np

from pa_tutorial.kernels.running import Launch
from pa_tutorial.kernels.vectors import vector_loads
from pa_tutorial.simt import Report, Trace
from pa_tutorial.simt.trace import KINDS, SPACES
from pa_tutorial.viz.kernel_runs import REFERENCE, prepare_v1
from pa_tutorial.viz.microscope import microscope
from pa_tutorial.viz.microscope.data import LANE_COLORS
from pa_tutorial.viz.microscope.paged_panes import paged_panes

EMPTY, INK, ALARM = "#f2f2f2", "#222222", "#d55e00"

# Where each cell of the panes stands, and what is seen there. The page keeps its object.
LOOK = """() => {
  const hex = ([r, g, b]) => "#" + [r, g, b].map((n) => n.toString(16).padStart(2, "0")).join("");
  const cellsOf = (grid) => {
    const { width, height } = grid.canvas;
    const copy = new OffscreenCanvas(width, height).getContext("2d", { willReadFrequently: true });
    copy.drawImage(grid.canvas, 0, 0);
    const { data } = copy.getImageData(0, 0, width, height);
    const pixel = (x, y) => {
      const at = 4 * (Math.floor(y * devicePixelRatio) * width + Math.floor(x * devicePixelRatio));
      return hex(data.slice(at, at + 3));
    };
    const cells = [...Array(grid.perTile).keys()].map((n) => grid.tile * grid.perTile + n);
    return cells.filter((cell) => grid.exists(cell)).map((cell) => {
      const { x, y, w, h } = grid.box(cell);
      const [top, bottom] = [0.5, h - 1.5].map((down) => pixel(x + w / 2, y + down));
      const within = new Set();
      if (grid.now.has(cell))
        for (let down = 2; down < h - 3; down++)
          for (let right = 0; right < w; right++) within.add(pixel(x + right, y + down));
      return [grid.address(cell), top, bottom, [...within]];
    });
  };
  const seen = microscope.grids.concat(microscope.localGrids).map((grid) => ({
    space: grid.space,
    array: grid.shape.array === null ? null : microscope.data.arrays[grid.shape.array].name,
    color: grid.shape.color.toLowerCase(),
    now: [...grid.now].map(([cell, { lanes, write }]) => [grid.address(cell), lanes, write]),
    before: [...grid.first.keys()]
      .filter((cell) => grid.first[cell] && grid.first[cell] - 1 <= grid.step)
      .map((cell) => grid.address(cell)),
    cells: cellsOf(grid),
  }));
  return JSON.stringify(seen); // Playwright takes its time over many small objects
}"""

# Milliseconds of each of many steps, drawing and layout included.
TIME_STEPS = """(times) => {
  const root = document.querySelector(".microscope");
  return [...Array(times).keys()].map(() => {
    const start = performance.now();
    root.dispatchEvent(new KeyboardEvent("keydown", { key: "ArrowRight" }));
    root.getBoundingClientRect();
    return performance.now() - start;
  });
}"""

# Milliseconds from the start of the page until it has been drawn.
WHEN_DRAWN = """() => new Promise((done) =>
  requestAnimationFrame(() => setTimeout(() => done(performance.now()))))"""

Cells = dict[int, tuple[tuple[int, ...], bool]]  # byte address -> lanes, and is it written?


class Screens:
    """Windows of a browser. To open one takes a second, to read the next page in it a quarter."""

    def __init__(self, browser) -> None:
        self.browser = browser
        self.free: dict[tuple[int, float], list] = defaultdict(list)

    def take(self, width: int, scale: float):
        if self.free[width, scale]:
            return self.free[width, scale].pop()
        size = {"width": width, "height": 1000}
        return self.browser.new_page(viewport=size, device_scale_factor=scale)

    def give_back(self, page, width: int, scale: float) -> None:
        page.mouse.move(0, 0)  # to where nothing is shown for a pointer
        self.free[width, scale].append(page)


class Reader:
    """Somebody who looks at a page. What goes wrong in it is kept in `problems`."""

    def __init__(self, screens: Screens, html: Path, width: int = 1280, scale: float = 1) -> None:
        self.page = screens.take(width, scale)
        self.problems: list[str] = []
        self.requests: list[str] = []
        listeners = {
            "console": lambda message: self.problems.append(message.text),
            "pageerror": lambda error: self.problems.append(str(error)),
            "request": lambda request: self.requests.append(request.url),
        }
        for event, listener in listeners.items():
            self.page.on(event, listener)

        def leave() -> None:
            for event, listener in listeners.items():
                self.page.remove_listener(event, listener)
            screens.give_back(self.page, width, scale)

        self.leave = leave
        self.page.goto(html.as_uri())
        self.keyboard = self.page.keyboard

    @property
    def at(self) -> int:
        """The warp instruction at which the page stands, a number as in the trace."""
        return int(self.page.locator(".microscope").get_attribute("data-step"))

    def go(self, instruction: int) -> None:
        self.page.evaluate(
            "n => microscope.go(microscope.recording.number.indexOf(n))", instruction
        )

    def text(self, part: str) -> str:
        return self.page.locator(part).inner_text()

    @property
    def about(self) -> list[str]:
        """What it says of the lane that is followed, and of banks."""
        return self.page.locator(".about").all_inner_texts()

    def press(self, *keys: str) -> None:
        for key in keys:
            self.keyboard.press(key)

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
        return self.page.evaluate(
            """([title, cell]) => {
              const grid = microscope.grids.find((g) => g.shape.title.startsWith(title));
              grid.tile = grid.tileOf(cell);
              grid.draw();
              const { x, y, w, h } = grid.box(cell);
              return { x: x + w / 2, y: y + h / 2 };
            }""",
            [title, cell],
        )

    def hover(self, title: str, cell: int) -> list[str]:
        """The lines that appear at the pointer."""
        self.canvas(title).hover(position=self.place(title, cell))
        return self.text(".tip").splitlines()

    def pixels(self, canvas: str, row: int) -> list[str]:
        """The colours of a row of a canvas."""
        bytes_of = self.page.evaluate(
            """([canvas, row]) => {
              const { width, height } = document.querySelector(canvas);
              const copy = new OffscreenCanvas(width, height).getContext("2d");
              copy.drawImage(document.querySelector(canvas), 0, 0);
              return [...copy.getImageData(0, row, width, 1).data];
            }""",
            [canvas, row],
        )
        return ["#" + bytes(bytes_of[i : i + 3]).hex() for i in range(0, len(bytes_of), 4)]

    def look(self) -> list[dict]:
        return json.loads(self.page.evaluate(LOOK))

    @property
    def warp(self) -> str:
        """The warp that is followed; empty: all."""
        return self.page.get_by_label("warp", exact=True).input_value()


# What must be seen -----------------------------------------------------------------------------


@cache
def reference() -> tuple[Launch, Report]:
    """The kernel at the sizes of vLLM's document, with its vector loads; thread block 0 traced."""
    prepared = prepare_v1(**vars(REFERENCE.paged("vllm")), loads=vector_loads)
    return prepared, prepared.simulate(trace=(0, 0, 0))


def the_trace() -> Trace:
    return reference()[1].trace


def physical(logical_block: int) -> int:
    return int(reference()[0].arguments["block_tables"][0, logical_block])


def position(instruction: int) -> int:
    """Its number on the page, from 1."""
    return int(np.searchsorted(np.unique(the_trace().records.instruction), instruction)) + 1


def save_reference(path: Path) -> Path:
    prepared, report = reference()
    microscope(report, panes=paged_panes(prepared)).save_html(path)
    return path


def stops(trace: Trace, warp: int | None = None, lane: int | None = None) -> list[int]:
    """The instructions at which a reader stops who follows a warp and a lane."""
    records = trace.records[trace.records.space != SPACES.index("local")]
    for field, wanted in (("warp", warp), ("lane", lane)):
        records = records if wanted is None else records[records[field] == wanted]
    return np.unique(records.instruction).tolist()


def unit_of(trace: Trace, space: str, array: str | None) -> int:
    """Bytes of one cell of a pane. Shared memory is cut as small as its smallest elements."""
    sizes = [a.dtype.itemsize for a in trace.arrays if a.space == space and array in (None, a.name)]
    return min(4, *sizes) if space == "shared" else min(sizes)


def panes_of(trace: Trace, records: np.ndarray) -> dict[tuple[str, str | None], np.ndarray]:
    """(space, array) -> the records of accesses to it. Shared memory is one array, None."""
    panes = defaultdict(lambda: np.zeros(len(trace.arrays), bool))
    for number, array in enumerate(trace.arrays):
        panes[array.space, None if array.space == "shared" else array.name][number] = True
    records = records[records["array"] >= 0]
    return {pane: records[numbers[records["array"]]] for pane, numbers in panes.items()}


def touched(trace: Trace, records: np.ndarray) -> dict[tuple[str, str | None], Cells]:
    """(space, array) -> the elements that some records touch, by whom, and are they written?"""
    found = {}
    for pane, accesses in panes_of(trace, records).items():
        lanes, written = defaultdict(set), set()
        for record in accesses:
            first, end = int(record["address"]), int(record["address"] + record["num_bytes"])
            for address in range(first, end, unit_of(trace, *pane)):
                lanes[address].add(int(record["lane"]))
                if KINDS[record["kind"]] != "read":
                    written.add(address)
        found[pane] = {a: (tuple(sorted(who)), a in written) for a, who in lanes.items()}
    return found


def ever_touched(trace: Trace, records: np.ndarray) -> dict[tuple[str, str | None], set[int]]:
    """(space, array) -> the addresses of the elements that some records touch."""
    found = {}
    for pane, accesses in panes_of(trace, records).items():
        offsets = np.arange(0, accesses.num_bytes.max(initial=0), unit_of(trace, *pane))
        inside = offsets < accesses.num_bytes[:, None]
        found[pane] = {*(accesses.address[:, None] + offsets)[inside].tolist()}
    return found


def locals_after(trace: Trace, instruction: int, lane: int | None) -> np.ndarray:
    """What one lane does with its local arrays until its warp touches anything else."""
    records = trace.records
    here = records[records.instruction == instruction]
    mine = records[(records.warp == here.warp[0]) & (records.instruction > instruction)]
    not_local = mine.instruction[mine.space != SPACES.index("local")]
    end = not_local.min() if len(not_local) else np.inf
    owner = here.lane.min() if lane is None else lane
    return mine[(mine.instruction < end) & (mine.lane == owner)]


def require_cells(
    reader: Reader, trace: Trace, warp: int | None = None, lane: int | None = None
) -> None:
    """What is lit, what was touched before, and the pixels of both, against the trace."""
    records, at = trace.records, reader.at
    mine = records if lane is None else records[records.lane == lane]
    mine = mine if warp is None else mine[mine.warp == warp]
    here, after = records[records.instruction == at], locals_after(trace, at, lane)
    now = touched(trace, np.append(mine[mine.instruction == at], after))
    before = ever_touched(trace, mine[mine.instruction <= at])
    owner = here.lane.min() if lane is None else lane
    last = after.instruction.max(initial=at)
    own = (records.warp == here.warp[0]) & (records.lane == owner) & (records.instruction <= last)
    before_of_owner = ever_touched(trace, records[own])
    for pane in reader.look():
        name = pane["space"], pane["array"]
        expected = now.pop(name)
        shown = {a: (tuple(sorted(lanes)), write) for a, lanes, write in pane["now"]}
        assert shown == expected, f"{name} at instruction {at}"
        past = before_of_owner if pane["space"] == "local" else before
        assert {*pane["before"]} == past[name], f"{name} before instruction {at}"
        require_pixels(pane, expected, lane)
    assert not any(now.values()), "a touched array has a pane"


def require_pixels(pane: dict, now: Cells, lane: int | None) -> None:
    """The colours in the tile that is shown."""
    before, visible = {*pane["before"]}, {address for address, *_ in pane["cells"]}
    assert not now or visible & {*now}, "the tile that is shown is one that is touched"
    for address, top, bottom, within in pane["cells"]:
        what = f"{pane['space']} {pane['array']}, address {address}"
        if address not in now:
            expected = pane["color"] if address in before else EMPTY
            assert (top, bottom) == (expected, expected), what
            continue
        lanes, write = now[address]
        color = LANE_COLORS[lanes[0]]
        # a frame around what the lane that is followed touches; a dark foot under what is written
        framed = lane in lanes or pane["space"] == "local"
        assert top == (INK if framed else color), what
        assert bottom == (INK if framed or write else color), what
        assert color in within, what
