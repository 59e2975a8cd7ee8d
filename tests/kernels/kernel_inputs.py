"""Small decode steps for the tests of the paged kernels."""

import dataclasses

import pytest
import torch
from torch import Tensor

from pa_tutorial.attention.step import DecodeStep
from pa_tutorial.kernels import running
from pa_tutorial.walk.problem import DecodeProblem

# The arguments of prepare_v1 and of the kernels as functions, in their order.
NAMES = tuple(field.name for field in dataclasses.fields(DecodeStep))


def problem(**changes: object) -> DecodeProblem:
    """2 sequences, 4 heads, 2 KV heads, blocks of 16."""
    sizes = {"seq_lens": (20, 9), "num_kv_heads": 2, "head_size": 32, **changes}
    return DecodeProblem("name", "isolates", "meaning", **sizes)


def arguments(case: DecodeProblem) -> dict[str, object]:
    """The arguments by name."""
    paged = case.paged("vllm")
    return {name: getattr(paged, name) for name in NAMES}


def values(paged: DecodeStep) -> list[object]:
    """The arguments in their order."""
    return [getattr(paged, name) for name in NAMES]


# What is refused: arguments that are nearly right


@pytest.fixture
def nothing_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The simulator must not start: an error comes before."""

    def start(*args: object, **options: object) -> None:
        pytest.fail("the kernel was launched; the arguments must be refused before")

    monkeypatch.setattr(running, "launch", start)


def spread(tensor: Tensor) -> Tensor:
    """The same numbers with a gap behind each block or token."""
    return torch.cat([tensor, tensor], dim=1)[:, : tensor.shape[1]]


def shifted(tensor: Tensor, elements: int = 2) -> Tensor:
    """The same numbers in memory that starts so many elements later."""
    memory = tensor.new_zeros(tensor.numel() + elements)
    return memory[elements:].view(tensor.shape).copy_(tensor)
