"""Every step that leads to the CPU kernel computes the same attention."""

import pytest
import torch

from pa_tutorial.kernels.cpu_steps import STEPS
from tests.kernels.kernel_inputs import error, step

# One head size and block size: each step is compiled anew for each size and dtype. They are those
# of the large batches that are timed: the kernel itself is then kept on disk. 37 tokens: a last
# block of 5 tokens, whose other slots hold NaN. 3 query heads of a KV head: a pair and one alone.
SIZES = {"head_size": 128, "block_size": 16, "num_heads": 6}
DRIFTING = {"seq_lens": (37, 20), "strided_q": True, "scores": "drifting"}
# Case -> changes, and the largest error: near 300 scores are less exact. That of 16-bit floats is
# the rounding of the output; bits taken for the other type give nonsense.
CASES = {
    "tails": ({"seq_lens": (37, 9, 64, 1)}, 2e-6),
    "far_below_zero": ({"seq_lens": (37, 20), "scores": "deep_negative", "stale": True}, 1e-4),
    "rising_and_falling": (DRIFTING, 1e-4),
    "bfloat16": ({"seq_lens": (37, 9), "dtype": torch.bfloat16}, 4e-3),
    "float16": ({"seq_lens": (37, 9), "dtype": torch.float16}, 5e-4),
}
each_step = pytest.mark.parametrize("name", STEPS)


@each_step
@pytest.mark.parametrize("case", CASES)
def test_step_is_attention(name: str, case: str) -> None:
    changes, bound = CASES[case]
    arguments = step(**SIZES | changes)
    *inputs, _ = arguments.values()  # without slopes
    run = STEPS[name](*inputs)
    first = run().clone()  # the next run of the kernel overwrites it
    assert first.dtype == arguments["q"].dtype
    assert error(first, arguments) < bound
    arguments["q"].mul_(2)
    assert not torch.allclose(run(), first), "a prepared step sees what changes in place"


@each_step
def test_step_refuses_blocks_without_a_kernel(name: str) -> None:
    *inputs, _ = step(block_size=4).values()
    with pytest.raises(ValueError, match="k_cache"):
        STEPS[name](*inputs)
