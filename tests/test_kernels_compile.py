"""Numba accepts every kernel that a notebook, a story or an exercise runs in the simulator."""

import linecache
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
from pa_tutorial.kernels.remade import remade
from pa_tutorial.viz import kernel_stories as stories
from pa_tutorial.viz.kernel_runs import REFERENCE

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


def run_cells(name: str, last: str | None = None) -> dict[str, object]:
    """The names of a notebook after its cells up to this one, without exercises."""
    names: dict[str, object] = {"In": []}
    for number, cell in enumerate(nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4).cells):
        skipped = "exercise" in cell.metadata or "live" in cell.metadata.get("tags", [])
        if cell.cell_type != "code" or skipped:
            continue
        file = f"<cell {number}>"
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


def test_kernels_of_notebook_08(launched: Launched) -> None:
    """The kernel as it grows, and the last one in each type."""
    names = run_cells("08_first_paged_kernel", last="08-kernel-run")
    for dtype in (torch.float16, torch.float32, torch.bfloat16):
        sizes = {"HEAD_SIZE": 128, "BLOCK_SIZE": 16, "DTYPE": dtype, "NUM_QUERIES_PER_KV": 2}
        given = names["arguments_of"](replace(REFERENCE, dtype=dtype).paged("vllm"))
        launched.append((remade(names["naive_kernel"], **sizes), given))
    assert compile_all(launched) == {"find_blocks", "naive_kernel"}


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
