"""A pane of the microscope shows an array cut into tiles, each a grid of elements.

A pane is data. The default panes show memory in the order of addresses; your own pane says what
the axes of the memory mean, and the microscope uses them to name every element.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

import numpy as np
from matplotlib.colors import is_color_like, to_hex

from simt import Trace
from simt.arguments import require
from simt.microscope import style
from simt.trace import TracedArray
from simt.traffic import units

ROW = 32  # elements in a row of a default pane
TILE_ROWS = 16  # rows of a tile of a default pane
LONG = 128  # the most elements of a local array in one row


@dataclass(frozen=True)
class Axis:
    """size steps of `stride` elements each"""

    name: str
    size: int
    stride: int

    def __post_init__(self) -> None:
        for name in ("size", "stride"):
            value = getattr(self, name)
            whole = isinstance(value, int | np.integer) and value >= 1
            require(whole, f"{name} of the axis {self.name!r}", repr(value), "an int, 1 or more")


@dataclass(frozen=True)
class Tile:
    """A part of an array: where it starts (in elements), and the values that all of it shares."""

    title: str
    start: int = 0
    values: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Pane:
    """One array in its layout.

    array    its name in the trace
    rows, columns  axes of each tile, the slowest first; there is a gap after each run of the
             last one in `columns`
    tiles    the parts of the array that are shown
    labels   name -> its terms, {axis or value of the tile: factor}: how the microscope describes
             an element. {"token": {"logical block": 16, "offset": 1}}
    color    colour of elements touched earlier, as Matplotlib writes colours

    Raises ValueError without a tile or an axis, and for two axes with one name, an unknown colour,
    or a label with a term that is neither an axis nor a value of every tile.
    """

    array: str
    title: str
    rows: tuple[Axis, ...]
    columns: tuple[Axis, ...]
    tiles: tuple[Tile, ...] = (Tile(""),)
    labels: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    color: str = style.QUIET

    def __post_init__(self) -> None:
        require(len(self.tiles) > 0, "tiles", "empty", "one tile or more")
        names = [axis.name for axis in (*self.rows, *self.columns)]
        axes = set(names)
        different = 0 < len(names) == len(axes)
        require(different, "rows, columns", names, "one axis or more, of different names")
        require(is_color_like(self.color), "color", repr(self.color), "a colour")
        for name, terms in self.labels.items():
            for term in terms:
                known = all(term in axes | {*tile.values} for tile in self.tiles)
                what = f"a term of the label {name!r} of {self.array}"
                require(known, what, repr(term), f"a value of every tile, or of {sorted(axes)}")


def array_number(trace: Trace, name: str) -> int:
    """Index in trace.arrays of the global array with this name. Raises ValueError if there is none
    or more than one."""
    numbers = [i for i, a in enumerate(trace.arrays) if (a.name, a.space) == (name, "global")]
    names = ", ".join(a.name for a in trace.arrays if a.space == "global") or "none"
    require(len(numbers) == 1, "panes: the array", repr(name), f"one of {names}, known once")
    return numbers[0]


def default_panes(trace: Trace) -> tuple[Pane, ...]:
    """One pane per global array: the touched elements, in the order of addresses."""
    arrays = [(i, a) for i, a in enumerate(trace.arrays) if a.space == "global"]
    return tuple(memory_pane(trace, i, a) for i, a in arrays)


def memory_pane(trace: Trace, number: int, array: TracedArray) -> Pane:
    """Memory in order. A row is the last axis if that is short, else 32 elements.

    A tile is a few rows; rows that no thread touches are left out.
    """
    last = array.shape[-1] if array.shape and array.shape[-1] <= 2 * ROW else ROW
    columns = last if len(array.shape) > 1 else min(ROW, max(prod(array.shape), 1))
    _, touched = units(trace.records[trace.records.array == number], 1)
    rows = np.unique((touched - array.address) // (columns * array.dtype.itemsize))
    height = min(TILE_ROWS, int(rows.max() - rows.min()) + 1)
    origin = int(rows.min()) % height
    starts = np.unique((rows - origin) // height) * height + origin
    tiles = tuple(
        Tile(f"from {first * columns}" if len(starts) > 1 else "", int(first) * columns)
        for first in starts.tolist()
    )
    axes = (Axis("row", height, columns),), (Axis("column", columns, 1),)
    shown, whole = height * len(tiles), -(-prod(array.shape) // columns)
    rest = f", {shown} of {whole} rows: the others are not touched" if shown < whole else ""
    return Pane(array.name, f"{array.name}, in the order of addresses{rest}", *axes, tiles)


def pane_as_data(pane: Pane, trace: Trace) -> dict[str, object]:
    """The pane of a global array, for the page. Addresses and strides in bytes."""
    number = array_number(trace, pane.array)
    return _as_data(pane, number, trace.arrays[number])


def _as_data(pane: Pane, number: int | None, array: TracedArray) -> dict[str, object]:
    """`low` is the array's first byte, `end` the byte after its last."""
    itemsize, first = array.dtype.itemsize, array.address
    steps = [s * (n - 1) for s, n in zip(array.strides, array.shape, strict=True)]
    low, high = (sum(f(step, 0) for step in steps) for f in (min, max))
    tiles = [(t.title, first + t.start * itemsize, {**t.values}) for t in pane.tiles]
    return {
        "title": pane.title,
        "array": number,
        "color": style.lighter(to_hex(pane.color), 0.65),
        "unit": itemsize,
        "rows": _axes(pane.rows, itemsize),
        "columns": _axes(pane.columns, itemsize),
        "tiles": [dict(zip(("title", "address", "values"), tile, strict=True)) for tile in tiles],
        "labels": {name: {**terms} for name, terms in pane.labels.items()},
        "low": first + low * itemsize,
        "end": first + (high + 1) * itemsize,
    }


def shared_as_data(trace: Trace) -> dict[str, object] | None:
    """Shared memory by bank: a row has one word per bank. None without shared memory."""
    arrays = [a for a in trace.arrays if a.space == "shared"]
    if not arrays:
        return None
    unit = min(4, *(a.dtype.itemsize for a in arrays))
    end = max(a.address + prod(a.shape) * a.dtype.itemsize for a in arrays)
    memory = TracedArray("shared memory", "shared", np.dtype("u1"), (end,), (1,), 0)
    axes = (Axis("row", -(-end // 128), 128),), (Axis("bank", 32, 4), Axis("byte", 4 // unit, unit))
    title = f"{memory.name}: a column is a bank"
    pane = Pane(memory.name, title, *axes, labels={"bank": {"bank": 1}}, color=style.SHARED)
    return _as_data(pane, None, memory) | {"unit": unit}


def local_as_data(number: int, array: TracedArray) -> dict[str, object]:
    """A local array of one lane, in one row if it isn't too long."""
    *outer, last = array.shape or (1,)
    runs = Axis("row", prod(outer), last)
    rows, columns = ((), (runs,)) if prod(array.shape) <= LONG else ((runs,), ())
    pane = Pane(array.name, array.name, rows, (*columns, Axis("column", last, 1)))
    return _as_data(pane, number, array)


def _axes(axes: Sequence[Axis], itemsize: int) -> list[dict[str, object]]:
    return [{"name": a.name, "size": a.size, "stride": a.stride * itemsize} for a in axes]
