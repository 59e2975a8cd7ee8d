"""Numba accepts the solutions of notebooks 07 to 14 as the grader runs them."""

from collections.abc import Callable

import pytest

import simt
from pa_tutorial.exercises import EXERCISES, grade, kernel_grading

pytestmark = pytest.mark.needs("numba-cuda")
NAMES = (
    *("double_each", "copy_in_blocks", "copy_with_guard", "copy_in_strides", "scale_heads"),
    *("look_up", "reverse_in_shared", "sum_in_shared"),
    *("largest_of_warp", "gather_tokens", "transpose_tokens"),
    *("query_to_shared", "warp_tree", "copy_by_vecs", "reduce_online"),
)


@pytest.mark.rest("test_exercises.py runs them in the simulator")
@pytest.mark.parametrize("capability", [(8, 0), (9, 0)], ids=["sm_80", "sm_90"])
@pytest.mark.parametrize("name", NAMES)
def test_solution_compiles(
    name: str, capability: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
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
        assert ".entry" in simt.compile_ptx(kernel, *args, compute_capability=capability)
