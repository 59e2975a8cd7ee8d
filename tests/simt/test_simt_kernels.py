"""Small kernels with known answers: simulated in every order, and compiled by Numba."""

import numpy as np
import pytest
import torch
from simt_helpers import double
from simt_kernels import puzzles
from simt_kernels.example import EXAMPLES, FAULTS, Example, Fault

from pa_tutorial.simt import launch, ptx

ORDERS = (pytest.param("together", marks=pytest.mark.macos), "forward", "reverse", 7)


def test_there_are_enough_kernels() -> None:
    assert len(EXAMPLES) >= 100
    names = {example.kernel.py_func.__module__ for example in EXAMPLES.values()}
    assert puzzles.__name__ in names


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("name", EXAMPLES)
def test_the_answer_is_right_and_no_check_cries_wolf(name: str, order: str | int) -> None:
    example = EXAMPLES[name]
    args = example.draw()
    report = launch(
        example.kernel,
        example.grid,
        example.block,
        *args,
        shared_bytes=example.shared_bytes,
        order=order,
    )
    assert report.clean
    for position, expected in example.answer(*example.draw()).items():
        np.testing.assert_allclose(args[position], expected, rtol=example.rtol, atol=0)


@pytest.mark.needs("numba-cuda")
@pytest.mark.parametrize(
    ("name", "capability"),
    [
        pytest.param(
            name,
            (major, 0),
            id=f"{name}-sm_{major}0",
        )
        for name in (*EXAMPLES, *FAULTS)
        for major in (8, 9)
    ],
)
def test_numba_compiles_what_is_simulated(name: str, capability: tuple[int, int]) -> None:
    kernel: Example | Fault = EXAMPLES.get(name) or FAULTS[name]
    text = ptx(kernel.kernel, *kernel.draw(), compute_capability=capability)
    assert ".entry" in text
    assert f".target sm_{capability[0]}0" in text


@pytest.mark.needs("numba-cuda")
def test_the_compiler_takes_the_tensors_that_launch_takes() -> None:
    assert ".entry" in ptx(double, torch.zeros(4), torch.zeros(4))
