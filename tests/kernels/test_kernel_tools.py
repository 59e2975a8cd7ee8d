"""Tools of the kernel notebooks: a changed kernel."""

from dataclasses import replace

import pytest
import torch

from pa_tutorial.kernels.changed import changed
from pa_tutorial.kernels.launch import prepare_v1
from pa_tutorial.kernels.paged_attention import paged_attention
from pa_tutorial.walk.cases import WORKED_EXAMPLE


def test_a_changed_kernel_does_something_else_and_the_original_does_not_change() -> None:
    prepared = prepare_v1(**vars(WORKED_EXAMPLE.paged("vllm")))
    old = "inv_sum = float32(1) / (exp_sum + float32(1e-6))"
    halved = changed(paged_attention, old, old.replace("float32(1) /", "float32(0.5) /"))
    prepared.simulate()
    right = prepared.out.clone()
    kernel = halved(prepared.geometry)
    assert kernel is not paged_attention(prepared.geometry)
    other = replace(prepare_v1(**vars(WORKED_EXAMPLE.paged("vllm"))), kernel=kernel)
    other.simulate()
    torch.testing.assert_close(other.out, right / 2, rtol=2e-3, atol=0)
    prepared.simulate()
    assert torch.equal(prepared.out, right)


@pytest.mark.parametrize(("old", "times"), [("no such line", 0), ("cuda.syncthreads()", 6)])
def test_the_text_to_change_must_stand_there_once(old: str, times: int) -> None:
    with pytest.raises(ValueError, match=f"it stands there {times} times"):
        changed(paged_attention, old)
