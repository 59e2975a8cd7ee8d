"""What the bounds of the cases cannot see: a narrow type on the way, and a tail found by NaN."""

import math

import pytest
import torch

from pa_tutorial.kernels.launch import prepare_naive, prepare_v1
from pa_tutorial.walk.cases import CASES

PREPARE = {"cuda_naive": prepare_naive, "cuda_v1": prepare_v1}
by_stage = pytest.mark.parametrize(
    "stage", [pytest.param(name, marks=getattr(pytest.mark, name)) for name in PREPARE]
)


@by_stage
@pytest.mark.parametrize("name", ["float16", "bfloat16", "worked_example"])
def test_only_the_output_is_rounded(stage: str, name: str) -> None:
    """Rows that the warps exchange in float16 would be right within the bound of the case.

    But then one element in ten differs from the exact output, rounded once.
    """
    problem = CASES[f"decode/{name}"]
    prepared = PREPARE[stage](**vars(problem.paged("vllm")))
    prepared.simulate()
    exact = torch.from_numpy(problem.expected()["out"]).to(problem.dtype)
    assert (prepared.out == exact).double().mean() > 0.98


@by_stage
def test_infinity_in_slots_without_a_token_changes_nothing(stage: str) -> None:
    """A kernel that finds the tail of V by NaN would pass all cases."""
    inputs = vars(CASES["decode/tail"].paged("vllm"))
    outs = []
    for stale in (math.nan, math.inf):
        caches = {name: inputs[name].nan_to_num(nan=stale) for name in ("k_cache", "v_cache")}
        prepared = PREPARE[stage](**{**inputs, **caches})
        prepared.simulate()
        outs.append(prepared.out)
    assert torch.equal(*outs)
