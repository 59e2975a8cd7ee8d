"""Numba accepts every kernel that a notebook, a story or an exercise runs in the simulator."""

import linecache
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import nbformat
import numpy as np
import pytest

from pa_tutorial import simt
from pa_tutorial.exercises import EXERCISES
from pa_tutorial.viz import kernel_stories as stories

NOTEBOOKS = Path(__file__).parent.parent / "notebooks"
pytestmark = pytest.mark.skipif(
    find_spec("numba_cuda") is None,
    reason=f"numba-cuda has no wheels for {sys.platform}: there is no compiler here",
)
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
    """Each kind of launch once, for sm_80 and sm_90; returns the names of the kernels."""
    kinds = {}
    for kernel, args in launched:
        types = tuple((type(a), getattr(a, "dtype", None), getattr(a, "ndim", 0)) for a in args)
        kinds[kernel.py_func, types] = kernel, args
    for kernel, args in kinds.values():
        for capability in ((8, 0), (9, 0)):
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


def test_kernels_of_notebook_07(launched: Launched) -> None:
    notebook = nbformat.read(NOTEBOOKS / "07_cuda_in_the_simulator.ipynb", as_version=4)
    names: dict[str, object] = {}
    for number, cell in enumerate(notebook.cells):
        skipped = "exercise" in cell.metadata or "live" in cell.metadata.get("tags", [])
        if cell.cell_type != "code" or skipped:
            continue
        file = f"<cell {number}>"
        lines = cell.source.splitlines(keepends=True)
        linecache.cache[file] = (len(cell.source), None, lines, file)
        exec(compile(cell.source, file, "exec"), names)
    names = compile_all([one for one in launched if one[0].py_func.__module__ != stories.__name__])
    assert {"double", "two_ways", "strided", "largest", "reverse", "first_half"} <= names


@pytest.mark.parametrize(
    ("name", "inputs"),
    [
        ("gather_tokens", (np.zeros((4, 8, 32), np.float32), np.zeros(2, np.int32))),
        ("weighted_values", (np.zeros(8, np.float32), np.zeros((32, 8), np.float32))),
        ("transpose_tokens", (np.zeros((32, 64), np.float32),)),
    ],
)
def test_solutions_of_exercises(name: str, inputs: tuple) -> None:
    out = np.zeros(32, np.float32) if name == "weighted_values" else np.zeros((32, 32), np.float32)
    assert compile_all([(EXERCISES[name].solution, (out, *inputs))]) == {name}
