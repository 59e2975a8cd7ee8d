"""Decode steps in the plain layout, for the tests of the CPU and the Triton kernels."""

import torch
from torch import Tensor

from pa_tutorial.attention.paged import paged_gather
from pa_tutorial.walk.problem import DecodeProblem

# The largest relative norm of a head's error. Of the narrow types it is their own rounding.
BOUNDS = {torch.float32: 2e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}


def step(**changes: object) -> dict[str, object]:
    """Arguments by name: sequences of 20 and 9 tokens, 4 heads, 2 KV heads of 16, blocks of 8."""
    sizes = {"seq_lens": (20, 9), "num_kv_heads": 2, "head_size": 16, "block_size": 8, **changes}
    return dict(vars(DecodeProblem("name", "isolates", "meaning", **sizes).paged("plain")))


def error(out: Tensor, arguments: dict[str, object]) -> float:
    """Of any head, relative to paged_gather in float64 on the same numbers; NaN if there is one."""
    exact = dict(arguments)
    for name, value in arguments.items():
        if isinstance(value, Tensor) and value.is_floating_point():
            exact[name] = value.detach().double()
    expected = paged_gather(**exact)
    return ((out.double() - expected).norm(dim=-1) / expected.norm(dim=-1)).max().item()


def is_right(out: Tensor, arguments: dict[str, object]) -> bool:
    return error(out, arguments) < BOUNDS[arguments["q"].dtype]
