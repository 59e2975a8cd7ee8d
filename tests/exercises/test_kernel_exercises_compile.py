"""Numba accepts the solutions of notebooks 07 to 14 as the grader runs them."""

from collections.abc import Callable

import pytest

import simt
from pa_tutorial.exercises import EXERCISES, grade, kernel_grading

pytestmark = pytest.mark.needs("numba-cuda")
NAMES = [one.name for one in EXERCISES.values() if "cuda." in one.source]


@pytest.mark.rest("test_exercises.py runs them in the simulator")
@pytest.mark.parametrize("name", NAMES)
def test_solution_compiles(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the first case and in the last."""
    seen: list[tuple[Callable, tuple]] = []

    def launch(kernel: Callable, grid: object, block: object, *args: object, **options: object):
        seen.append((kernel, args))
        return original(kernel, grid, block, *args, **options)

    original = kernel_grading.launch
    monkeypatch.setattr(kernel_grading, "launch", launch)
    assert grade(name).ok
    assert len(seen) == len(EXERCISES[name].trials())
    for kernel, args in (seen[0], seen[-1]):
        assert ".entry" in simt.compile_ptx(kernel, *args)
