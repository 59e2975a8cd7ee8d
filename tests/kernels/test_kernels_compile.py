"""Numba accepts every kernel that a notebook or an exercise runs in the simulator."""

import linecache
import re
import subprocess
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import cycle
from pathlib import Path

import nbformat
import numpy as np
import pytest
import torch

from pa_tutorial import simt
from pa_tutorial.exercises import EXERCISES
from pa_tutorial.kernels.compiled import compiled, linked, lto_ir
from pa_tutorial.kernels.remade import remade
from pa_tutorial.simt.arguments import arrays_of, named
from pa_tutorial.simt.signatures import types_of
from pa_tutorial.viz.kernel_runs import REFERENCE

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
pytestmark = pytest.mark.needs("numba-cuda")
Launched = list[tuple[Callable, tuple]]


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> Launched:
    """(kernel, arguments) of every launch from here on."""
    seen: Launched = []

    def launch(kernel: Callable, grid: object, block: object, *args: object, **options: object):
        seen.append((kernel, args))
        return original(kernel, grid, block, *args, **options)

    original = simt.launch
    monkeypatch.setattr(simt, "launch", launch)
    return seen


def compile_all(launched: Launched) -> set[str]:
    """Each kind of launch once, for sm_90 and sm_80 in turn; returns the names of the kernels."""
    kinds = {}
    for kernel, args in launched:
        types = tuple((type(a), getattr(a, "dtype", None), getattr(a, "ndim", 0)) for a in args)
        kinds[kernel.py_func, types] = kernel, args
    for (kernel, args), capability in zip(kinds.values(), cycle(((9, 0), (8, 0))), strict=False):
        assert ".entry" in simt.ptx(kernel, *args, compute_capability=capability)
    return {kernel.__name__ for kernel, _ in kinds}


def run_cells(name: str, last: str | None = None) -> dict[str, object]:
    """The names of a notebook after its cells up to this one, without exercises."""
    names: dict[str, object] = {"In": []}
    for number, cell in enumerate(nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4).cells):
        skipped = "exercise" in cell.metadata or "live" in cell.metadata.get("tags", [])
        if cell.cell_type != "code" or skipped:
            continue
        file = f"<cell {number} of {name}>"
        lines = cell.source.splitlines(keepends=True)
        linecache.cache[file] = (len(cell.source), None, lines, file)
        names["In"].append(cell.source)
        exec(compile(cell.source, file, "exec"), names)
        if cell.id == last:
            break
    return names


def test_kernels_of_notebook_07(launched: Launched) -> None:
    run_cells("07_cuda_in_the_simulator")
    assert compile_all(launched) == {
        *("scale_query", "copy_elements", "two_ways", "copy_tokens", "sums_of_four"),
        *("scores_by_lane", "scores", "reverse", "first_half", "transpose"),
    }


def test_kernels_of_notebook_08(launched: Launched) -> None:
    """The kernel as it grows, and the last one in each type."""
    names = run_cells("08_first_paged_kernel", last="08-kernel-run")
    for dtype in (torch.float16, torch.float32, torch.bfloat16):
        sizes = {"HEAD_SIZE": 128, "BLOCK_SIZE": 16, "DTYPE": dtype, "NUM_QUERIES_PER_KV": 2}
        arguments = names["arguments_of"](replace(REFERENCE, dtype=dtype).paged("vllm"))
        launched.append((remade(names["naive_kernel"], **sizes), arguments))
    assert compile_all(launched) == {"find_blocks", "naive_kernel"}


def test_kernels_of_notebook_09(launched: Launched) -> None:
    """The kernel as it grows, and the last one in each type."""
    names = run_cells("09_query_and_key", last="09-launch-scores")
    for dtype in (torch.float16, torch.float32, torch.bfloat16):
        sizes = {"HEAD_SIZE": 128, "BLOCK_SIZE": 16, "DTYPE": dtype}
        step = replace(REFERENCE, dtype=dtype).paged("vllm")
        names["launch_scores"](remade(names["scores"], **sizes), step)
    kernels = "query_in_a_hurry", "rows_of_query", "read_keys", "score_of_block", "scores"
    assert compile_all(launched) == {*kernels}


@pytest.mark.parametrize("capability", [(8, 0), (9, 0)], ids=["sm_80", "sm_90"])
def test_kernels_of_notebook_12(launched: Launched, capability: tuple[int, int]) -> None:
    """v2 and the reduce kernel, as the reader has written them."""
    run_cells("12_partitions", last="12-reduce-look")
    (v2, inputs), *_, (reduce, left) = launched
    for kernel, arguments in ((v2, inputs), (reduce, left)):
        ptx = simt.ptx(kernel, *as_arrays(arguments), compute_capability=capability)
        assert ".entry" in ptx
    assert (v2.__name__, reduce.__name__) == ("paged_attention_v2", "reduce_partitions")


@pytest.fixture(scope="module")
def of_notebook_11() -> dict[str, object]:
    return run_cells("11_vector_loads", last="11-by-element")


@pytest.mark.parametrize("capability", [(8, 0), (9, 0)])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_kernels_of_notebook_11(
    of_notebook_11: dict, dtype: torch.dtype, capability: tuple[int, int]
) -> None:
    names, step = of_notebook_11, replace(REFERENCE, dtype=dtype).paged("vllm")
    kernel = names["remade"](names["paged_attention_v1"], **names["sizes"] | {"DTYPE": dtype})
    _, arguments, _ = names["run"](kernel, **vars(step))
    build = compiled(kernel, signature_of(kernel, arguments), capability)
    assert build.registers <= 64
    assert (build.spill_bytes, build.stack_bytes, build.num_doubles) == (0, 0, 0)


def signature_of(kernel: Callable, arguments: tuple) -> tuple:
    values = named(kernel.py_func, arguments)
    return types_of(kernel.py_func, (values | arrays_of(values)).values())


@pytest.mark.parametrize(
    ("name", "reads"),
    [("by_element", {"LDS.64": 16}), ("by_vec", {"LDS.128": 8 + 2})],  # q_vecs; and 2 of weights
)
def test_machine_code_joins_the_reads_of_shared_memory(
    of_notebook_11: dict, name: str, reads: dict[str, int], tmp_path: Path
) -> None:
    """64 reads of 2 bytes and 16 of 8 in PTX: what notebook 11 says of them."""
    triton = pytest.importorskip("triton", reason="nvdisasm comes with Triton")
    kernel = of_notebook_11[name]
    _, arguments, _ = of_notebook_11["run"](kernel, **vars(REFERENCE.paged("vllm")))
    signature = signature_of(kernel, arguments)
    assert (
        compiled(kernel, signature, (9, 0)).loads.items()
        >= {"by_element": {("shared", 2): 64}, "by_vec": {("shared", 8): 16}}[name].items()
    )
    file = tmp_path / "kernel.cubin"
    file.write_bytes(linked(lto_ir(kernel, signature, (9, 0)), (9, 0), "cubin")[0])
    nvdisasm = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "nvdisasm"
    text = subprocess.run([nvdisasm, file], capture_output=True, encoding="utf-8", check=True)
    found = Counter(re.findall(r"\bLDS[.\w]*", text.stdout))
    assert {wide: number for wide, number in found.items() if wide != "LDS"} == reads


def as_arrays(arguments: tuple) -> tuple:
    return tuple(a.numpy() if isinstance(a, torch.Tensor) else a for a in arguments)


def test_kernels_of_notebook_10(launched: Launched) -> None:
    """The kernel as it grows, and the whole of v1 in each type, for sm_80 and sm_90."""
    names = run_cells("10_softmax_and_value", last="10-v1")
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        sizes = {"HEAD_SIZE": 128, "BLOCK_SIZE": 16, "DTYPE": dtype}
        step = vars(replace(REFERENCE, dtype=dtype).paged("vllm"))
        arguments = as_arrays(names["arguments"](**step))
        kernel = remade(names["paged_attention_v1"], **sizes)
        for capability in ((8, 0), (9, 0)):
            assert ".entry" in simt.ptx(kernel, *arguments, compute_capability=capability)
    assert compile_all(launched) == {"maxima", "softmax", "values"}


def floats(*shape: int) -> np.ndarray:
    return np.zeros(shape, np.float32)


def numbers(*shape: int) -> np.ndarray:
    return np.zeros(shape, np.int32)


WARM_UPS_OF_07 = ("double_each", "largest_of_warp", "reverse_in_shared")


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("gather_tokens", (floats(32, 32), floats(4, 8, 32), numbers(2))),
        *((name, (floats(64), floats(64))) for name in WARM_UPS_OF_07),
        ("transpose_tokens", (floats(32, 32), floats(32, 64))),
        ("token_slots", (floats(1, 11), numbers(1, 3), numbers(1), np.int32(8))),
        (
            "paged_values",
            (floats(1, 4, 32), floats(1, 4, 11), floats(7, 2, 8, 32), numbers(1, 3), numbers(1)),
        ),
        (
            "write_keys",
            (floats(7, 2, 8, 8, 4), floats(11, 2, 32), numbers(11).astype(np.int64)),
        ),
    ],
)
def test_solutions_of_exercises(name: str, arguments: tuple) -> None:
    assert compile_all([(EXERCISES[name].solution, arguments)]) == {name}
