"""The paged kernels with their warps in other orders than the ladder's "together"."""

import pytest
from torch import Tensor

from pa_tutorial.checks.running import judge, stage_trial
from pa_tutorial.kernels.launch import prepare_naive, prepare_v1
from pa_tutorial.walk.cases import CASES
from pa_tutorial.walk.ladder import STAGES

PREPARE = {"cuda_naive": prepare_naive, "cuda_v1": prepare_v1}
ORDERED = [
    pytest.param(
        stage, case.id, order, id=f"{stage}-{order}-{case.name}", marks=getattr(pytest.mark, stage)
    )
    for stage in PREPARE
    for order in ("forward", "reverse")
    for case in CASES.values()
    if STAGES[stage].is_checked_on(case)
]


@pytest.mark.parametrize(("stage", "case_id", "order"), ORDERED)
def test_the_order_of_the_warps_does_not_matter(stage: str, case_id: str, order: str) -> None:
    def function(*tensors: object) -> Tensor:
        prepared = PREPARE[stage](*tensors)
        prepared.simulate(order=order)
        return prepared.out

    result, _ = judge(stage_trial(STAGES[stage], case_id), function)
    assert result.passed, result.report()
