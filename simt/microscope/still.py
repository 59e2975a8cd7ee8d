"""A picture of one instruction, as the microscope shows it, for pages without JavaScript."""

from collections.abc import Sequence
from math import prod

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.patheffects import withStroke

from simt import Trace
from simt.gpus import WARP_SIZE
from simt.microscope import style
from simt.microscope.data import LANE_COLORS
from simt.microscope.style import frame, plural
from simt.ptx import ptx_by_line
from simt.ptx.parsing import Kernel
from simt.source import Site
from simt.trace import KINDS, NO_LANE, NO_TURN, SPACES, TracedArray, loop_name
from simt.traffic import NUM_BANKS, SECTOR, WORD, costs, units

DOES = {"read": "reads", "write": "writes", "atomic": "changes"}
DID = {"read": "read", "write": "wrote", "atomic": "changed"}
SPACE_COLORS = {
    "global": style.GLOBAL,
    "shared": style.SHARED,
    "local": "#D9D9D9",
    "none": style.CHOSEN,
}
SPACE_WORDS = {
    "global": "global memory",
    "shared": "shared memory",
    "local": "local arrays",
    "none": "shuffle, vote, barrier",
}
COSTS = ("global", "sectors", "ideal_sectors"), ("shared", "wavefronts", "ideal")
CODE_LINES = 5  # of the source, around the instruction
PIXELS = 1500  # of the time line
ROW = 0.13  # inches of a row of cells
SMALL = 8.5  # points
CODE_WIDTH = 80  # characters of a line of source
PTX_LINES = 8  # of a column; there are two columns
PTX_WIDTH = 56  # characters of a line of PTX
TILES = 4  # at most, of those that an instruction touches
LABEL = 4.5  # points: the width of a digit of a lane
HALO = [withStroke(linewidth=1.5, foreground=style.PAPER)]


@style.styled
def draw_step(
    trace: Trace,
    step: int,
    shapes: list[dict],
    lane: int | None,
    findings: list[dict],
    compiled: Kernel | None = None,
) -> Figure:
    """The source and its PTX, the time line, and the tiles that this instruction touches.

    trace     of one thread block
    step      number of a warp instruction in it, counted from 0
    shapes    of the panes, as pane_as_data makes them
    lane      only this lane is shown; None: all
    findings  as data.findings makes them
    compiled  the kernel, if the PTX of the source line is shown
    """
    numbers = np.unique(trace.records.instruction)
    now = trace.only(instruction=int(numbers[step]))
    race = next((f for f in findings if f["second"] == step and f["first"] is not None), None)
    other = trace.only(instruction=int(numbers[race["first"]])) if race else None
    shown = [(shape, tile) for shape in shapes for tile in _tiles(trace, shape, now)][:TILES]
    rows = [len(_offsets(shape["rows"])) for shape, _ in shown]
    lanes = 0.4 if KINDS[now.records.kind[0]] == "shuffle" else 0.2
    tall = 0.4 if len(rows) < 2 else 0.42  # with 0.4 the layout of two isn't the same each time
    site = trace.sites[now.records.place[0]]
    ptx = ptx_by_line(compiled, site.file).get(site.line, []) if compiled else []
    of_ptx = [0.12 + 0.15 * min(-(-len(ptx) // 2), PTX_LINES)] if ptx else []
    heights = [1.2, *of_ptx, 0.16 * trace.num_warps, lanes, *(tall + ROW * n for n in rows)]
    options = {"nrows": len(heights), "height_ratios": heights}
    title = _title(trace, now, step)
    if other:
        head = other.records[0]
        title = f"{title.partition(', ')[0]}, which warp {head.warp} {DID[KINDS[head.kind]]}"
        title += f" in instruction {race['first'] + 1}, with no barrier in between"
    figure, axes = style.new_figure(title, 0.6 + sum(heights), **options)
    of_source, *of_ptx, of_time, of_lanes = axes[: len(heights) - len(rows)]
    _draw_source(of_source, trace, now)
    for one in of_ptx:
        _draw_ptx(one, site, ptx)
    _draw_timeline(of_time, trace, step, [race["first"], step] if race else [])
    _draw_lanes(of_lanes, now, lane)
    for one, (shape, tile) in zip(axes[len(heights) - len(rows) :], shown, strict=True):
        cells = _draw_pane(one, trace, now, shape, tile, lane)
        if race:
            address = now.records.address[now.records.lane == race["second_lane"]]
            for y, x in np.argwhere(cells == address)[:1]:
                frame(one, x, y, WORD // shape["unit"], 1, style.WRONG, linewidth=2, zorder=5)
    return figure


def _title(trace: Trace, now: Trace, step: int) -> str:
    record = now.records[0]
    total = trace.num_instructions
    head = f"Instruction {step + 1:,} of {total:,}: warp {record.warp}"
    kind, space = KINDS[record.kind], SPACES[record.space]
    if space == "none":
        return f"{head} is at a {kind}, with {len(now)} lanes"
    cost = {name: int(values[0]) for name, values in costs(now).items()}
    words = f"{head} {DOES[kind]} {now.the_array().name}, {record.num_bytes} bytes per lane"
    for here, paid, best in COSTS:
        if space == here:
            words += f", in {plural(cost[paid], paid[:-1])}"
            words += f" where {cost[best]} would do" * (cost[best] < cost[paid])
    return words


def _draw_source(axes: Axes, trace: Trace, now: Trace) -> None:
    """The lines around the instruction, in the kernel or the device function that it is in; beside
    a loop, its iteration."""
    axes.axis("off")
    record = now.records[0]
    way = trace.ways[record.way]
    sites = [(trace.sites[place], turn) for place, turn in (*way, (record.place, NO_TURN))]
    name = sites[-1][0].function
    source = next(s for s in trace.sources if s.name == name)
    own = [(site.line, turn) for site, turn in sites if site.function == name]
    turns = {line: turn for line, turn in own if turn != NO_TURN}
    middle = own[-1][0]
    axes.set_title(_way_in_words(sites), weight="normal", pad=3)
    first = max(middle - CODE_LINES // 2 - 1, min(source.lines))
    lines = [n for n in range(first, first + CODE_LINES) if n in source.lines]
    indent = min(len(t) - len(t.lstrip()) for n in lines if (t := source.lines[n]).strip())
    for row, number in enumerate(lines):
        y = 1 - (row + 0.5) / CODE_LINES
        here = number == middle
        text = source.lines[number][indent:]
        text = text if len(text) <= CODE_WIDTH else text[: CODE_WIDTH - 2] + " …"
        turn = f"turn {turns[number]}" if number in turns else ""
        if here:
            box = (0, y - 0.5 / CODE_LINES), 1, 1 / CODE_LINES
            axes.add_patch(
                Rectangle(*box, facecolor=style.lighter(style.GLOBAL, 0.5), edgecolor="none")
            )
        font = {"family": "DejaVu Sans Mono", "size": SMALL, "va": "center"}
        axes.text(0.005, y, f"{number:4}", color=style.QUIET, **font)
        axes.text(0.06, y, turn, weight="bold", **font)
        axes.text(0.14, y, text, weight="bold" if here else "normal", **font)
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1)


def _draw_ptx(axes: Axes, site: Site, ptx: Sequence[str]) -> None:
    """The instructions of a source line, in two columns; in bold the one that is executed."""
    axes.axis("off")
    at, room = ptx.index(site.text) if site.text in ptx else 0, 2 * PTX_LINES
    first = max(0, min(at - room // 2, len(ptx) - room))
    shown = ptx[first : first + room]
    words = f"PTX of line {site.line} of {site.function}, {plural(len(ptx), 'instruction')}"
    words += f": {first + 1} to {first + room}" * (len(ptx) > room)
    axes.set_title(words, weight="normal", pad=2)
    height = -(-len(shown) // 2)
    for number, line in enumerate(shown):
        column, row = divmod(number, height)
        text = line if len(line) <= PTX_WIDTH else line[: PTX_WIDTH - 2] + " …"
        font = {"family": "DejaVu Sans Mono", "size": 7, "va": "center"}
        weight = "bold" if line == site.text else "normal"
        axes.text(0.005 + column / 2, 1 - (row + 0.5) / height, text, weight=weight, **font)


def _way_in_words(sites: list[tuple[Site, int]]) -> str:
    """For each function, the iterations of its loops, and its line."""
    functions: dict[str, list[str]] = {}
    lines: dict[str, int] = {}
    for site, turn in sites:
        words = functions.setdefault(site.function, [])
        lines[site.function] = site.line
        if turn != NO_TURN:
            words.append(f"{loop_name(site)} turn {turn}")
    names = list(functions)
    first, *called = [
        ", ".join([f"line {lines[name]}" + (f" of {name}" if name != names[0] else ""), *words])
        for name, words in functions.items()
    ]
    return " › ".join([first, *called])


def _draw_timeline(axes: Axes, trace: Trace, step: int, race: Sequence[int]) -> None:
    """A line per warp, with a cursor at `step`; red: the two instructions of a race."""
    records = trace.records
    _, first = np.unique(records.instruction, return_index=True)
    head = records[first]
    width = min(len(head), PIXELS)
    pixels = np.ones((trace.num_warps, width, 3))
    column = np.arange(len(head)) * width // len(head)
    for space in ("local", "shared", "global", "none"):  # the last one is on top
        here = head.space == SPACES.index(space)
        pixels[head.warp[here], column[here]] = to_rgb(SPACE_COLORS[space])
    axes.imshow(pixels, aspect="auto", interpolation="nearest", extent=(0, 1, len(pixels), 0))
    x = (step + 0.5) / len(head)
    axes.axvline(x, color=style.INK, linewidth=1.2)
    axes.plot([x], [head.warp[step] + 0.5], "s", markersize=6, mfc="none", mec=style.INK)
    for at in race:
        frame(axes, at / len(head), head.warp[at], 1 / len(head), 1, style.WRONG, linewidth=2)
    for place, (space, words) in enumerate(SPACE_WORDS.items()):
        at = {"transform": axes.transAxes, "size": SMALL, "va": "top"}
        axes.text(0.25 * place, -0.06, "■", color=SPACE_COLORS[space], **at)
        axes.text(0.25 * place + 0.02, -0.06, words, color=style.QUIET, **at)
    _name_rows(axes, np.arange(trace.num_warps) + 0.5, [f"warp {w}" for w in range(len(pixels))])


def _draw_lanes(axes: Axes, now: Trace, lane: int | None) -> None:
    """One chip per lane, in its colour; pale: not at work."""
    source = dict(zip(now.records.lane.tolist(), now.records.source_lane.tolist(), strict=True))
    for one, color in enumerate(LANE_COLORS):
        face = color if one in source else style.EMPTY
        edge = style.INK if one == lane else style.PAPER
        axes.add_patch(Rectangle((one, 0), 0.94, 1, facecolor=face, edgecolor=edge, linewidth=1.5))
        ink = style.ink_on(color) if one in source else style.QUIET
        axes.text(one + 0.47, 0.46, f"{one}", ha="center", va="center", size=SMALL, color=ink)
        if source.get(one, NO_LANE) != NO_LANE:
            axes.text(one + 0.47, -0.5, f"←{source[one]}", ha="center", va="center", size=7)
    shuffles = max(source.values()) != NO_LANE
    axes.set_xlim(0, 32)
    axes.set_ylim(-1 if shuffles else 0, 1)
    _name_rows(axes, [0.5, -0.5][: 1 + shuffles], ["lanes", "reads from"][: 1 + shuffles])


def _draw_pane(
    axes: Axes, trace: Trace, now: Trace, shape: dict, tile: int, lane: int | None
) -> np.ndarray:
    """A touched tile: earlier accesses pale, the current ones in the lanes' colours.

    Returns the address of each cell.
    """
    cells = np.add.outer(_offsets(shape["rows"]), _offsets(shape["columns"]))
    cells += shape["tiles"][tile]["address"]
    unit = shape["unit"]
    records = trace.records
    array = np.isin(records.array, np.unique(now.records.array))
    if shape["array"] is None:
        array = records.space == SPACES.index("shared")
    followed = np.isin(records.lane, range(WARP_SIZE) if lane is None else lane)
    if lane is not None:
        followed &= records.warp == now.records.warp[0]
    before = records[array & followed & (records.instruction <= now.records.instruction[0])]
    seen = np.isin(cells, _addresses(before, unit))
    colors = np.full((*cells.shape, 3), to_rgb(style.EMPTY))
    if shape["array"] is None:
        colors[~_in_arrays(trace, cells, 0)] = to_rgb(style.PAPER)
        colors[_in_arrays(trace, cells, 1)] = to_rgb("#DDDDDD")
    colors[seen] = to_rgb(shape["color"])
    num_rows, num_columns = cells.shape
    extent = (0, num_columns, num_rows, 0)
    axes.imshow(colors, aspect="auto", interpolation="nearest", extent=extent)
    run = shape["columns"][-1]["size"] if len(shape["columns"]) > 1 else num_columns
    for x in range(run, num_columns, run):
        axes.axvline(x, color=style.PAPER, linewidth=1)
    for y in range(1, num_rows):
        axes.axhline(y, color=style.PAPER, linewidth=0.7)
    _draw_touched(axes, now, cells, unit, run, lane)
    words = shape["title"] + (f": {t}" if (t := shape["tiles"][tile]["title"]) else "")
    if (seen & ~np.isin(cells, _addresses(now.records, unit))).any():
        words += "; pale: touched before" + (f" by lane {lane}" if lane is not None else "")
    axes.set_title(words, weight="normal", pad=3 if shape["array"] is not None else 13)
    _name_rows(axes, [], [])
    if shape["array"] is None:
        _draw_banks(axes, now, run)
        _name_arrays(axes, trace, num_columns)
    else:
        _draw_sectors(axes, now, cells)
    return cells


def _name_rows(axes: Axes, places: Sequence[float], names: Sequence[str]) -> None:
    """Show these names at the left, and nothing else around the axes."""
    axes.set_yticks(places, names)
    axes.tick_params(length=0, labelsize=SMALL)
    axes.set_xticks([])
    axes.spines[:].set_visible(False)


def _draw_banks(axes: Axes, now: Trace, run: int) -> None:
    """The numbers of the banks, below; red if a bank must serve several words."""
    words = units(now.records, WORD)[1]
    busy = np.bincount(np.unique(words) % NUM_BANKS, minlength=NUM_BANKS)
    axes.set_xticks((np.arange(NUM_BANKS) + 0.5) * run, map(str, range(NUM_BANKS)))
    axes.tick_params(axis="x", length=0, labelsize=SMALL, pad=1)
    for label, count in zip(axes.get_xticklabels(), busy, strict=True):
        if count > 1:
            label.set(color=style.WRONG, weight="bold")
    axes.set_xlabel("bank; red: several words requested" if busy.max() > 1 else "bank")


def _draw_sectors(axes: Axes, now: Trace, cells: np.ndarray) -> None:
    """A frame around each sector that moves; its cells are neighbours."""
    for sector in np.unique(units(now.records, SECTOR)[1]):
        rows, columns = np.nonzero(cells // SECTOR == sector)
        if len(rows):
            size = columns.max() - columns.min() + 1, rows.max() - rows.min() + 1
            frame(axes, columns.min(), rows.min(), *size, linewidth=1, zorder=3, clip_on=False)


def _shared_arrays(trace: Trace) -> list[TracedArray]:
    arrays = [array for array in trace.arrays if array.space == "shared"]
    return sorted(arrays, key=lambda array: array.address)


def _in_arrays(trace: Trace, cells: np.ndarray, odd: int) -> np.ndarray:
    """The cells of all shared arrays, or (odd) of every other one."""
    inside = np.zeros(cells.shape, bool)
    for array in _shared_arrays(trace)[odd :: odd + 1]:
        end = array.address + prod(array.shape) * array.dtype.itemsize
        inside |= (cells >= array.address) & (cells < end)
    return inside


def _name_arrays(axes: Axes, trace: Trace, num_columns: int) -> None:
    """Where each shared array begins: a bar at its first cell, and its name above it if that is in
    the first row, else beside the row."""
    names: dict[int, list[str]] = {}
    for array in _shared_arrays(trace):
        row, byte = divmod(array.address, NUM_BANKS * WORD)
        x = byte / (NUM_BANKS * WORD) * num_columns
        axes.plot([x, x], [row + 0.05, row + 0.95], color=style.INK, linewidth=2, clip_on=False)
        if row:
            names.setdefault(row, []).append(array.name)
        else:
            axes.text(x, -0.15, array.name, size=SMALL, va="bottom")
    axes.set_yticks([row + 0.5 for row in names], [",\n".join(here) for here in names.values()])
    axes.tick_params(axis="y", length=0, labelsize=SMALL)


def _draw_touched(
    axes: Axes, now: Trace, cells: np.ndarray, unit: int, run: int, lane: int | None
) -> None:
    place = {address: (y, x) for (y, x), address in np.ndenumerate(cells)}
    lanes: dict[tuple[int, int], list[int]] = {}
    for record in now.records:
        if lane is None or record.lane == lane:
            for address in range(record.address, record.address + record.num_bytes, unit):
                if address // unit * unit in place:
                    lanes.setdefault(place[address // unit * unit], []).append(int(record.lane))
    for row, first, last, here in _runs(lanes, run):
        color, width = LANE_COLORS[here[0]], last - first + 1
        box = (first + 0.03, row + 0.04), width - 0.06, 0.9
        axes.add_patch(Rectangle(*box, facecolor=color, edgecolor=style.PAPER, linewidth=0.4))
        text = f"{here[0]}" if len(here) == 1 else f"×{len(here)}"
        look = {"ha": "center", "va": "center", "size": 7}
        where = first + width / 2, row + 0.52
        alone = {(row, first - 1), (row, last + 1)}.isdisjoint(lanes)
        if width * style.WIDTH * 66 / cells.shape[1] > LABEL * len(text):
            axes.text(*where, text, color=style.ink_on(color), **look)
        elif alone:  # over the neighbours, which no lane touches
            axes.text(*where, text, color=style.INK, path_effects=HALO, **look)


def _runs(lanes: dict[tuple[int, int], list[int]], run: int) -> list[tuple]:
    """Neighbours that the same lanes touch: (row, first column, last column, lanes)."""
    runs: list[list] = []
    for (row, x), here in sorted(lanes.items()):
        last = runs[-1] if runs else None
        if last and last[0] == row and last[2] == x - 1 and last[3] == here and x % run:
            last[2] = x
        else:
            runs.append([row, x, x, here])
    return [tuple(one) for one in runs]


def _tiles(trace: Trace, shape: dict, now: Trace) -> list[int]:
    """The tiles of a pane that an instruction touches."""
    record = now.records[0]
    if shape["array"] is None:
        return [0] if SPACES[record.space] == "shared" else []
    if record.array != shape["array"]:
        return []
    inside = np.add.outer(_offsets(shape["rows"]), _offsets(shape["columns"]))
    touched = _addresses(now.records, shape["unit"])
    starts = [tile["address"] for tile in shape["tiles"]]
    return [i for i, start in enumerate(starts) if np.isin(inside + start, touched).any()]


def _addresses(records: np.recarray, unit: int) -> np.ndarray:
    """The aligned units that some records touch, as byte addresses."""
    return np.unique(units(records, unit)[1]) * unit


def _offsets(axes: list[dict]) -> np.ndarray:
    """Bytes from the start of a tile to each place along some axes."""
    found = np.zeros(1, int)
    for axis in axes:
        found = np.add.outer(found, np.arange(axis["size"]) * axis["stride"]).ravel()
    return found
