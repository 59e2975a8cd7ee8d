"""Numba accepts every kernel that a notebook, a story or an exercise runs in the simulator."""

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
from pa_tutorial.kernels.launch import prepare_naive
from pa_tutorial.simt.arguments import arrays_of, named
from pa_tutorial.simt.signatures import types_of
from pa_tutorial.viz import first_kernel
from pa_tutorial.viz import kernel_stories as stories
from pa_tutorial.viz.kernel_runs import REFERENCE
from pa_tutorial.walk.cases import WORKED_EXAMPLE

NOTEBOOKS = Path(__file__).parent.parent / "notebooks"
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
    monkeypatch.setattr(stories, "launch", launch)
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


def test_kernels_of_the_stories(launched: Launched) -> None:
    stories.copy_trace(stories.copy_by_tokens)
    stories.copy_trace(stories.copy_by_elements)
    for group in (1, stories.THREAD_GROUP_SIZE, 32):
        stories.scores_trace(group)
    stories.transpose_trace(padding=1)
    names = {"copy_by_tokens", "copy_by_elements", "scores", "transpose"}
    assert compile_all(launched) == names


def run_cells(stem: str, last: str = "") -> dict[str, object]:
    """The names of a notebook after its cells, but for exercises and live ones, up to `last`."""
    notebook = nbformat.read(NOTEBOOKS / f"{stem}.ipynb", as_version=4)
    names: dict[str, object] = {"In": []}
    for number, cell in enumerate(notebook.cells):
        skipped = "exercise" in cell.metadata or "live" in cell.metadata.get("tags", [])
        if cell.cell_type != "code" or skipped:
            continue
        file = f"<cell {number} of {stem}>"
        lines = cell.source.splitlines(keepends=True)
        linecache.cache[file] = (len(cell.source), None, lines, file)
        names["In"].append(cell.source)
        exec(compile(cell.source, file, "exec"), names)
        if cell.id == last:
            break
    return names


def test_kernels_of_notebook_07(launched: Launched) -> None:
    run_cells("07_cuda_in_the_simulator")
    names = compile_all([one for one in launched if one[0].py_func.__module__ != stories.__name__])
    assert {"double", "two_ways", "strided", "largest", "reverse", "first_half"} <= names


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
    _, given, _ = names["run"](kernel, **vars(step))
    build = compiled(kernel, signature_of(kernel, given), capability)
    assert build.registers <= 64
    assert (build.spill_bytes, build.stack_bytes, build.num_doubles) == (0, 0, 0)


def signature_of(kernel: Callable, given: tuple) -> tuple:
    values = named(kernel.py_func, given)
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
    _, given, _ = of_notebook_11["run"](kernel, **vars(REFERENCE.paged("vllm")))
    signature = signature_of(kernel, given)
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


def test_kernels_of_notebook_08() -> None:
    """The first paged kernel in each type, and with caches of a type of their own."""
    launches = []
    for dtype in (torch.float16, torch.float32, torch.bfloat16):
        for problem in (WORKED_EXAMPLE, first_kernel.ONE_HEAD):
            ready = prepare_naive(**vars(replace(problem, dtype=dtype).paged("vllm")))
            launches.append((ready.kernel, as_arrays(ready.given)))
    ready = prepare_naive(**vars(WORKED_EXAMPLE.paged("vllm")))
    out, q, k_cache, v_cache, *rest = ready.given
    wide = out, q, k_cache.float(), v_cache.float(), *rest
    launches.append((ready.kernel, as_arrays(wide)))
    assert compile_all(launches) == {"naive_kernel"}


def floats(*shape: int) -> np.ndarray:
    return np.zeros(shape, np.float32)


def numbers(*shape: int) -> np.ndarray:
    return np.zeros(shape, np.int32)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("gather_tokens", (floats(32, 32), floats(4, 8, 32), numbers(2))),
        ("weighted_values", (floats(32), floats(8), floats(32, 8))),
        ("transpose_tokens", (floats(32, 32), floats(32, 64))),
        (
            "paged_scores",
            (
                floats(1, 4, 11),
                floats(1, 4, 32),
                floats(7, 2, 8, 8, 4),
                np.float32(1),
                numbers(1, 3),
                numbers(1),
            ),
        ),
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
