"""The panes of the paged kernel: K, V, q and out in their layouts, and what an element means."""

from collections.abc import Mapping

from pa_tutorial.arguments import require
from pa_tutorial.kernels.cuda_launch import PagedLaunch
from pa_tutorial.kernels.geometry import Geometry
from pa_tutorial.kernels.vectors import vector_loads
from pa_tutorial.viz import style
from pa_tutorial.viz.kernel_runs import REFERENCE, Run, run_v1
from simt import Trace
from simt.microscope import Microscope, microscope
from simt.microscope.panes import Axis, Pane, Tile
from simt.snapshots import Index


def reference_microscope() -> Microscope:
    """The kernel with vector loads at the reference sizes: figures/microscope.html."""
    run = run_v1(REFERENCE, loads=vector_loads)
    loads = sorted({*run.trace.only(array="k_cache", warp=2).records.instruction.tolist()})
    return run_microscope(run, loads[3])  # j = 3


def run_microscope(run: Run, at: int | Trace | None = None, lane: int | None = None) -> Microscope:
    """A run of the paged kernel, with the panes of its thread block."""
    panes = paged_panes(run.prepared, (run.head, 0, 0))
    return microscope(run.report, panes=panes, at=at, lane=lane)


def paged_panes(prepared: PagedLaunch, block: Index = (0, 0, 0)) -> tuple[Pane, ...]:
    """The panes of one thread block (head, sequence, partition) of a launch of the paged kernel.

    A tile of K or V is one block of the KV cache for one KV head, in the order of the sequence.
    A line has BLOCK_SIZE * X elements: one piece of every token of K, or X rows of V.

    Raises ValueError for a launch of another kernel, or for a thread block that doesn't exist.
    """
    whole = {"q", "k_cache", "v_cache", "kv_block_stride"} <= set(prepared.arguments)
    allowed = "of the paged kernel: v1, or the partitions of v2"
    require(whole, "prepared", "a launch of another kernel", allowed)
    inside = len(block) == 3 and all(0 <= i < n for i, n in zip(block, prepared.grid, strict=True))
    require(inside, "block", block, f"in the grid {prepared.grid}")
    g, (head, sequence, partition) = prepared.geometry, block
    tiles = _tiles(prepared, block)
    row = g.BLOCK_SIZE * g.X
    k_rows = Axis("piece", g.HEAD_SIZE // g.X, row)
    k_columns = Axis("offset", g.BLOCK_SIZE, g.X), Axis("in piece", g.X, 1)
    v_rows = Axis("rows", g.HEAD_SIZE // g.X, row)
    v_columns = Axis("row", g.X, g.BLOCK_SIZE), Axis("offset", g.BLOCK_SIZE, 1)
    k_element, v_element = {"piece": g.X, "in piece": 1}, {"rows": g.X, "row": 1}
    k_title = "K: a line is one piece of every token; logical → physical block"
    v_title = f"V: a line is {g.X} rows of {g.BLOCK_SIZE} tokens; logical → physical block"
    of_k, of_v = _labels(g, k_element), _labels(g, v_element)
    return (
        _head_pane(g, "q", sequence * prepared.arguments["q_stride"], head, sequence, g.VEC_SIZE),
        Pane("k_cache", k_title, (k_rows,), k_columns, tiles, of_k, style.K),
        Pane("v_cache", v_title, (v_rows,), v_columns, tiles, of_v, style.V),
        _out_pane(prepared, head, sequence, partition),
    )


def _tiles(prepared: PagedLaunch, block: Index) -> tuple[Tile, ...]:
    """The blocks that one thread block reads. A block that is in the table twice is one tile."""
    g, (head, sequence, partition), given = prepared.geometry, block, prepared.arguments
    kv_head = head // g.NUM_QUERIES_PER_KV
    tokens = range(int(given["seq_lens"][sequence]))[partition * g.PARTITION_SIZE :]
    tokens = tokens[: g.PARTITION_SIZE] if g.PARTITION_SIZE else tokens
    logical_of: dict[int, list[int]] = {}
    for logical in range(tokens.start // g.BLOCK_SIZE, -(-tokens.stop // g.BLOCK_SIZE)):
        physical = int(given["block_tables"][sequence, logical])
        logical_of.setdefault(physical, []).append(logical)
    tiles = []
    for physical, logical in logical_of.items():
        start = physical * given["kv_block_stride"] + kv_head * given["kv_head_stride"]
        values = {"physical block": physical, "logical block": logical[0], "KV head": kv_head}
        names = " and ".join(map(str, logical))
        tiles.append(Tile(f"{names} → {physical}", start, values))
    return tuple(tiles)


def _labels(geometry: Geometry, element: Mapping[str, int]) -> dict[str, dict[str, int]]:
    return {
        "token": {"logical block": geometry.BLOCK_SIZE, "offset": 1},
        "logical block": {"logical block": 1},
        "physical block": {"physical block": 1},
        "offset": {"offset": 1},
        "KV head": {"KV head": 1},
        "element": {**element},
    }


def _head_pane(
    geometry: Geometry, array: str, start: int, head: int, sequence: int, run: int
) -> Pane:
    """One head of q or out in one line, with a gap after every `run` elements."""
    size = geometry.HEAD_SIZE
    columns = Axis("vec", size // run, run), Axis("in vec", run, 1)
    values = {"sequence": sequence, "head": head}
    labels = {name: {name: 1} for name in values} | {"element": {"vec": run, "in vec": 1}}
    tile = Tile("", start + head * size, values)
    color = style.Q if array == "q" else style.OUT
    return Pane(array, f"{array}, one head", (), columns, (tile,), labels, color)


def _out_pane(prepared: PagedLaunch, head: int, sequence: int, partition: int) -> Pane:
    """v1's out, or in v2 the output of one partition."""
    num_heads, _, num_partitions = prepared.grid
    row = (sequence * num_heads + head) * num_partitions + partition
    size = prepared.geometry.HEAD_SIZE
    return _head_pane(prepared.geometry, "out", row * size - head * size, head, sequence, size)
