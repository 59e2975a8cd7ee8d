"""Small decode steps for the tests of the paged kernels."""

import dataclasses

from pa_tutorial.attention.step import DecodeStep
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
