"""Every step that leads to the CPU kernel computes the same attention."""

import pytest
import torch
from kernel_inputs import problem

from pa_tutorial.attention.paged import paged_gather
from pa_tutorial.kernels.cpu_steps import STEPS
from pa_tutorial.walk.problem import DecodeProblem

# One head size and block size: each step is compiled anew for each size and dtype. They are those
# of the large batches that are timed: the kernel itself is then kept on disk. 37 tokens: a last
# block of 5 tokens, whose other slots hold NaN. 3 query heads of a KV head: a pair and one alone.
STEP = {"head_size": 128, "block_size": 16, "num_heads": 6, "num_kv_heads": 2}
CASES = {
    "tails": {"seq_lens": (37, 9, 64, 1)},
    "full_blocks": {"seq_lens": (32, 16)},
    "far_below_zero": {"seq_lens": (37, 20), "scores": "deep_negative"},
    "stale_tails": {"seq_lens": (37, 20), "scores": "deep_negative", "stale": True},
    "rising_and_falling": {"seq_lens": (37, 20), "scores": "drifting"},
    "strided_q": {"seq_lens": (20, 9), "strided_q": True},
}
each_step = pytest.mark.parametrize("name", STEPS)


def error(name: str, case: DecodeProblem) -> float:
    """Of the step, of any head, relative to paged_gather in float64 on the same numbers."""
    inputs = case.paged("plain")
    arguments = [inputs.q, inputs.k_cache, inputs.v_cache, inputs.block_tables, inputs.seq_lens]
    out = STEPS[name].prepare(*arguments, inputs.scale)()
    assert out.dtype == case.dtype
    for position in range(3):
        arguments[position] = arguments[position].double()
    expected = paged_gather(*arguments, inputs.scale)
    return float(((out - expected).norm(dim=-1) / expected.norm(dim=-1)).nan_to_num(9).max())


@each_step
@pytest.mark.parametrize("case", CASES)
def test_step_is_attention(name: str, case: str) -> None:
    bound = 2e-6 if "scores" not in CASES[case] else 1e-4  # scores near 300 are less exact
    assert error(name, problem(**STEP, **CASES[case])) < bound


@each_step
@pytest.mark.parametrize(
    ("dtype", "bound"),
    [(torch.bfloat16, 4e-3), (torch.float16, 5e-4)],
)
def test_step_widens_16_bit_floats(name: str, dtype: torch.dtype, bound: float) -> None:
    """The error is that of rounding the output; bits taken for the other type give nonsense."""
    assert error(name, problem(**STEP, seq_lens=(37, 9), dtype=dtype)) < bound


@each_step
def test_step_refuses_vllms_layout(name: str) -> None:
    inputs = problem(**STEP).paged("vllm")
    arguments = inputs.q, inputs.k_cache, inputs.v_cache, inputs.block_tables, inputs.seq_lens
    with pytest.raises(ValueError, match="k_cache"):
        STEPS[name].prepare(*arguments, inputs.scale)


@each_step
def test_prepared_step_sees_what_changes_in_place(name: str) -> None:
    inputs = problem(**STEP).paged("plain")
    arguments = inputs.q, inputs.k_cache, inputs.v_cache, inputs.block_tables, inputs.seq_lens
    run = STEPS[name].prepare(*arguments, inputs.scale)
    first = run().clone()  # the next run of the kernel overwrites it
    inputs.q.mul_(2)
    assert not torch.allclose(run(), first)
    inputs.q.div_(2)
    assert torch.allclose(run(), first)
