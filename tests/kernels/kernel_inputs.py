"""Small decode steps for the tests of the kernels, and what is changed in them."""

from dataclasses import fields, replace

import torch
from torch import Tensor

from pa_tutorial.attention.backend import Launch
from pa_tutorial.attention.paged import gather_then_attend, paged_gather
from pa_tutorial.attention.step import DecodeStep, QuantizedStep
from pa_tutorial.checks.ladder import backend_named
from pa_tutorial.checks.problem import DecodeProblem

SUMS = 2e-6  # the largest relative norm of a head's error, beside the rounding of its type


def problem(**changes: object) -> DecodeProblem:
    """2 sequences, 4 heads, 2 KV heads, blocks of 16."""
    sizes = {"seq_lens": (20, 9), "num_kv_heads": 2, "head_size": 32, **changes}
    return DecodeProblem("name", "isolates", "meaning", **sizes)


def arguments(case: DecodeProblem) -> dict[str, object]:
    """Of the CUDA kernels, by name."""
    return dict(vars(case.paged("vllm")))


def step(**changes: object) -> dict[str, object]:
    """Of the CPU and Triton kernels: 20 and 9 tokens, 4 heads, 2 KV heads of 16, blocks of 8."""
    return dict(vars(problem(**{"head_size": 16, "block_size": 8, **changes}).paged("plain")))


def prepare(backend: str, **named: object) -> Launch:
    """A launch of the backend of this name, from the fields of a DecodeStep, and its sizes.

    Its output is all NaN: memory that is used again may still hold the right answer.
    """
    step = {one.name: named.pop(one.name) for one in fields(DecodeStep) if one.name in named}
    launch = backend_named(backend).prepare(DecodeStep(**step), **named)
    if not launch.out.is_cuda:  # on a GPU, and on a stand-in for one, reading would wait
        assert launch.out.isnan().all()
    return launch


def require_right(out: Tensor, arguments: dict[str, object]) -> None:
    """Beside paged_gather in float64, on the same numbers."""
    exact = dict(arguments)
    for name, value in arguments.items():
        if isinstance(value, Tensor) and value.is_floating_point():
            exact[name] = value.detach().double()
    require_near(out, paged_gather(**exact), arguments["q"].dtype)


def require_near(out: Tensor, expected: Tensor, dtype: torch.dtype) -> None:
    """AssertionError with both numbers, unless each head's relative error is within the bound of
    this dtype; NaN is not."""
    errors = (out.double() - expected).norm(dim=-1) / expected.norm(dim=-1)
    found, bound = errors.max().item(), torch.finfo(dtype).eps / 2 + SUMS
    assert found < bound, f"a head is off by {found:.1e}, relative; {dtype} allows {bound:.0e}"


# An 8-bit cache ----------------------------------------------------------------------------------

SCALES = {"k_scale": (0.06, 0.5), "v_scale": (0.25, 0.03)}  # of 2 KV heads


def float8_step(
    dtype: torch.dtype, cached: torch.dtype, layout: str = "vllm", **sizes: object
) -> QuantizedStep:
    return problem(dtype=dtype, cache_dtype=cached, **SCALES, **sizes).paged(layout)


def require_float8_right(out: Tensor, step: QuantizedStep) -> None:
    """Beside paged_gather's output, of q in float32."""
    require_near(out, gather_then_attend(replace(step, q=step.q.float())), step.q.dtype)


# The same numbers, but for one or but for gaps ---------------------------------------------------


def wide(tensor: Tensor) -> Tensor:
    """With a gap behind each in the last dimension."""
    return torch.stack([tensor, tensor], dim=-1)[..., 0]


def apart(tensor: Tensor) -> Tensor:
    """With a gap behind each block."""
    return torch.cat([tensor, tensor], dim=1)[:, : tensor.shape[1]]
