"""Tools of the kernel notebooks: a changed kernel, a piece of its text, the narrow sum."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from pa_tutorial.kernels.changed import changed
from pa_tutorial.kernels.launch import prepare_v1
from pa_tutorial.kernels.narrow import narrow_dot
from pa_tutorial.kernels.paged_attention import paged_attention
from pa_tutorial.viz.source import piece
from pa_tutorial.walk.cases import WORKED_EXAMPLE


def test_a_changed_kernel_does_something_else_and_the_original_does_not_change() -> None:
    ready = prepare_v1(**vars(WORKED_EXAMPLE.paged("vllm")))
    old = "inv_sum = float32(1) / (exp_sum + float32(1e-6))"
    halved = changed(paged_attention, old, old.replace("float32(1) /", "float32(0.5) /"))
    ready.simulate()
    right = ready.out.clone()
    kernel = halved(ready.geometry)
    assert kernel is not paged_attention(ready.geometry)
    other = replace(prepare_v1(**vars(WORKED_EXAMPLE.paged("vllm"))), kernel=kernel)
    other.simulate()
    torch.testing.assert_close(other.out, right / 2, rtol=2e-3, atol=0)
    ready.simulate()
    assert torch.equal(ready.out, right)


@pytest.mark.parametrize(("old", "times"), [("no such line", 0), ("cuda.syncthreads()", 6)])
def test_the_text_to_change_must_stand_there_once(old: str, times: int) -> None:
    with pytest.raises(ValueError, match=f"it stands there {times} times"):
        changed(paged_attention, old)


def test_a_piece_begins_and_ends_where_it_is_told() -> None:
    lines = piece(paged_attention, "exp_sum = float32(0)", "exp_sum += val").splitlines()
    assert lines[0] == "exp_sum = float32(0)"
    assert lines[-1] == "    exp_sum += val"
    assert piece(paged_attention, "mid = ", "mid = ") == "mid = i // 2"


@pytest.mark.parametrize(
    ("first", "last", "named"),
    [("no such line", "mid", "first: "), ("mid = ", "thread_idx = ", "last: ")],
)
def test_a_piece_that_is_not_there_is_an_error(first: str, last: str, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        piece(paged_attention, first, last)


def rounded(value: float, dtype: torch.dtype) -> float:
    return torch.tensor(value).to(dtype).item()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_the_narrow_sum_rounds_where_the_original_does(dtype: torch.dtype) -> None:
    draw = torch.Generator().manual_seed(1)
    weights, v = torch.rand(3, 16, generator=draw), torch.randn(3, 16, generator=draw).to(dtype)
    expected = []
    for row in range(3):
        total = np.float32(0)
        for first in (0, 8):
            products = [
                rounded(rounded(weights[row, t].item(), dtype) * v[row, t].item(), dtype)
                for t in range(first, first + 8)
            ]
            if dtype == torch.float16:  # even and odd tokens apart, pair after pair
                for side in (0, 1):
                    part = products[side]
                    for t in range(side + 2, 8, 2):
                        part = rounded(part + products[t], dtype)
                    total += np.float32(part)
            else:
                total += np.float32(sum(products))
        expected.append(total)
    found = narrow_dot(weights, v)
    assert found.dtype == torch.float32
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-6)
