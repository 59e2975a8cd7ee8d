"""The trace of one thread block as compact data for the page, quick to unpack.

The addresses of a warp instruction are stored as one number and a pattern with each lane's distance
from it. There are few patterns, because kernels repeat themselves.
"""

import ast
import base64
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from matplotlib import colormaps
from matplotlib.colors import to_hex

from simt import Report, Trace
from simt.gpus import WARP_SIZE
from simt.microscope.panes import Pane, local_as_data, pane_as_data, shared_as_data
from simt.moments import is_at
from simt.ptx import PtxReport, ptx_by_line
from simt.ptx.parsing import Kernel
from simt.source import Site, Source
from simt.trace import KINDS, SPACES, loop_name
from simt.traffic import costs

TYPES = {"u1": "Uint8Array", "u2": "Uint16Array", "u4": "Uint32Array", "f8": "Float64Array"}
TYPES |= {"i4": "Int32Array"}
# Dark to light: the ends differ for people with a colour vision deficiency, and in grey.
LANE_COLORS = [to_hex(colormaps["viridis"](lane / (WARP_SIZE - 1))) for lane in range(WARP_SIZE)]


def as_data(
    report: Report | PtxReport, trace: Trace, panes: Sequence[Pane], compiled: Kernel | None = None
) -> dict[str, object]:
    """Everything the page needs, as numbers and texts.

    trace     the trace of one thread block
    compiled  the kernel, if its PTX is shown
    """
    found = {
        "kernel": trace.kernel,
        "grid": trace.grid,
        "block": trace.block,
        "index": index_of_block(trace),
        "num_warps": trace.num_warps,
        "kinds": KINDS,
        "spaces": SPACES,
        "lane_colors": LANE_COLORS,
        "columns": {name: packed(values) for name, values in columns(trace).items()},
        "sources": [source_as_data(source, compiled) for source in trace.sources],
        "places": places(trace),
        "ways": [[[place, turn] for place, turn in way] for way in trace.ways],
        "arrays": arrays(trace),
        "panes": [pane_as_data(pane, trace) for pane in panes],
        "shared": shared_as_data(trace),
        "locals": [local_as_data(i, a) for i, a in enumerate(trace.arrays) if a.space == "local"],
        "findings": findings(report, trace),
        "clean": f"checked {', '.join(report.checks) or 'nothing'}",
    }
    return found | ({"compiled": True} if isinstance(report, PtxReport) else {})


def index_of_block(trace: Trace) -> tuple[int, ...]:
    """Of the thread block that a trace is of."""
    index = np.unravel_index(int(trace.records.block[0]), trace.grid[::-1])
    return tuple(int(i) for i in index[::-1])


def source_as_data(source: Source, compiled: Kernel | None) -> dict[str, object]:
    """A function's lines, and the PTX of each if it is shown."""
    numbers = sorted(source.lines)
    lines = [source.lines[number] for number in numbers]
    found = {"name": source.name, "first": numbers[0], "lines": lines}
    by_line = ptx_by_line(compiled, source.file) if compiled else {}
    return found | ({"ptx": by_line} if by_line else {})


def columns(trace: Trace) -> dict[str, np.ndarray]:
    """For each warp instruction, its fields, its lanes, their addresses and its cost.

    lanes    one bit per lane
    base     the address of the first lane; for a shuffle, the lane that it reads
    pattern  index into `patterns`, [number, 32]: what to add for each lane
    """
    records = trace.records
    numbers, first, of = np.unique(records.instruction, return_index=True, return_inverse=True)
    head = records[first]
    lanes = np.zeros(len(numbers), np.uint32)
    np.bitwise_or.at(lanes, of, np.uint32(1) << records.lane.astype(np.uint32))
    values = np.where(records.space == 0, np.maximum(records.source_lane, 0), records.address)
    deltas = np.zeros((len(numbers), WARP_SIZE), np.int64)
    deltas[of, records.lane] = values - values[first][of]
    patterns, pattern = np.unique(deltas, axis=0, return_inverse=True)
    fields = ("warp", "place", "kind", "space", "array", "num_bytes", "way")
    found = {name: head[name] for name in fields}
    found["array"] = head.array + 1  # 0: none
    return found | {
        "lanes": lanes,
        "base": values[first],
        "pattern": pattern.ravel(),
        "patterns": patterns.ravel(),
        "number": numbers,
        **costs(trace),
    }


def packed(values: np.ndarray) -> dict[str, str]:
    """Whole numbers in the smallest type that holds them, as base64."""
    low, high = (int(values.min()), int(values.max())) if len(values) else (0, 0)
    limits = {"u1": (0, 2**8), "u2": (0, 2**16), "u4": (0, 2**32), "i4": (-(2**31), 2**31)}
    fits = [kind for kind, (least, end) in limits.items() if least <= low and high < end]
    kind = fits[0] if fits else "f8"
    data = np.ascontiguousarray(values, np.dtype(kind).newbyteorder("<"))
    return {"type": TYPES[kind], "data": base64.b64encode(data.tobytes()).decode()}


def places(trace: Trace) -> list[dict[str, object]]:
    """Every place: its source (-1: unknown), line and text."""
    return [
        {
            "source": source_number(trace, site),
            "line": site.line,
            "text": site.text,
            "loop": loop_name(site),
        }
        for site in trace.sites
    ]


def source_number(trace: Trace, site: Site) -> int:
    where = site.function, site.file
    known = (i for i, s in enumerate(trace.sources) if (s.name, s.file) == where)
    return next((i for i in known if site.line in trace.sources[i].lines), -1)


def arrays(trace: Trace) -> list[dict[str, object]]:
    names = aliases(trace)
    return [
        {
            "name": a.name,
            "space": a.space,
            "dtype": str(a.dtype),
            "itemsize": a.dtype.itemsize,
            "shape": a.shape,
            "strides": a.strides,
            "address": a.address,
            "aliases": names.get(a.name, []),
        }
        for a in trace.arrays
    ]


def aliases(trace: Trace) -> dict[str, list[str]]:
    """array -> other names that the kernel gives to the whole array: `out_smem = logits`."""
    found: dict[str, list[str]] = {}
    known = {array.name: array.name for array in trace.arrays}
    trees = [source.tree for source in trace.sources if source.name == trace.kernel]
    for node in (node for tree in trees[:1] for node in ast.walk(tree)):
        match node:
            case ast.Assign(targets=[ast.Name(id=new)], value=ast.Name(id=old)) if old in known:
                known[new] = known[old]
                found.setdefault(known[old], []).append(new)
    return found


def findings(report: Report | PtxReport, trace: Trace) -> list[dict[str, object]]:
    """Their texts, places and arrays, and their instructions, counted in this trace; null: not in
    it. `recorded` is whether `second` is the instruction of the mistake, not one before it."""
    numbers = np.unique(trace.records.instruction).tolist()
    position = {number: i for i, number in enumerate(numbers)}
    arrays, here = [array.name for array in trace.arrays], index_of_block(trace)
    return [
        {
            "check": f.check,
            "text": str(f),
            "source": source_number(trace, f.site),
            "line": f.site.line,
            "array": arrays.index(f.array) if f.array in arrays else None,
            "first": position.get(f.other_instruction),
            "second": position.get(f.instruction, 0 if f.block == here else None),
            "recorded": f.instruction in position and is_at(trace, f, f.instruction),
            "first_lane": None if f.other_thread is None else f.other_thread % WARP_SIZE,
            "second_lane": f.thread % WARP_SIZE,
        }
        for f in report.findings
    ]


def one_block(trace: Trace, block: int | tuple[int, ...] | None) -> Trace:
    """The trace of one thread block; by default the first that was traced."""
    if block is None:
        block = int(trace.records.block[0])
    one = trace.only(block=block)
    touched = np.unique(one.records.array[one.records.array >= 0])
    renumbered = np.full(len(trace.arrays) + 1, -1)
    renumbered[touched] = np.arange(len(touched))
    records = one.records.copy()
    records.array = renumbered[records.array]
    return replace(one, records=records, arrays=tuple(trace.arrays[i] for i in touched))
