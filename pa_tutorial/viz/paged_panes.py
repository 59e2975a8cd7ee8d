"""The panes of the paged kernel: K, V, q and out in their layouts, and what an element means."""

from collections.abc import Mapping

from torch import Tensor

from pa_tutorial.arguments import require
from pa_tutorial.kernels.cuda_backends import PagedBackend, v1_vector_backend
from pa_tutorial.kernels.cuda_launch import PagedLaunch
from pa_tutorial.kernels.geometry import Geometry
from pa_tutorial.viz import style
from pa_tutorial.viz.kernel_runs import REFERENCE, Run, run_v1
from simt import Trace
from simt.microscope import Microscope, microscope
from simt.microscope.panes import Axis, Pane, Tile
from simt.snapshots import Index


def reference_microscope(backend: PagedBackend = v1_vector_backend) -> Microscope:
    """The kernel with vector loads at the reference sizes: figures/microscope.html."""
    run = run_v1(REFERENCE, backend=backend)
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
    allowed = "of the paged kernel: v1, or the partitions of v2"
    is_paged = isinstance(prepared, PagedLaunch)
    require(is_paged, "prepared", "a launch of another kernel", allowed)
    inside = len(block) == 3 and all(0 <= i < n for i, n in zip(block, prepared.grid, strict=True))
    require(inside, "block", block, f"in the grid {prepared.grid}")
    g = prepared.geometry
    k_tiles, v_tiles = (_tiles(prepared, name, block) for name in ("k_cache", "v_cache"))
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
        _head_pane(prepared, "q", block, g.VEC_SIZE),
        Pane("k_cache", k_title, (k_rows,), k_columns, k_tiles, of_k, style.K),
        Pane("v_cache", v_title, (v_rows,), v_columns, v_tiles, of_v, style.V),
        _head_pane(prepared, "tmp_out" if g.PARTITION_SIZE else "out", block, g.HEAD_SIZE),
    )


def _tiles(prepared: PagedLaunch, cache: str, block: Index) -> tuple[Tile, ...]:
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
        start = start_of(given[cache], physical, kv_head)
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


def _head_pane(prepared: PagedLaunch, array: str, block: Index, run: int) -> Pane:
    """One head of q or of the output in one line, with a gap after every `run` elements.

    In v2 the output is that of a partition, in tmp_out.
    """
    size, (head, sequence, partition) = prepared.geometry.HEAD_SIZE, block
    columns = Axis("vec", size // run, run), Axis("in vec", run, 1)
    values = {"sequence": sequence, "head": head}
    labels = {name: {name: 1} for name in values} | {"element": {"vec": run, "in vec": 1}}
    index = sequence, head, *[partition] * (array == "tmp_out")
    tile = Tile("", start_of(prepared.arguments[array], *index), values)
    color = style.Q if array == "q" else style.OUT
    return Pane(array, f"{array}, one head", (), columns, (tile,), labels, color)


def start_of(tensor: Tensor, *index: int) -> int:
    """The place of tensor[index][0, ...] in memory, counted in elements from the tensor's start."""
    return sum(i * stride for i, stride in zip(index, tensor.stride(), strict=False))
