"""The paged kernels with their warps in other orders than the ladder's "together"."""

import pytest
from torch import Tensor

from pa_tutorial.attention.step import DecodeStep
from pa_tutorial.checks.running import judge, stage_trial
from pa_tutorial.kernels.cuda_backends import naive_backend, v1_backend
from pa_tutorial.walk.cases import CASES
from pa_tutorial.walk.ladder import STAGES

BACKENDS = {"cuda_naive": naive_backend, "cuda_v1": v1_backend}
ORDERED = [
    pytest.param(
        stage, case.id, order, id=f"{stage}-{order}-{case.name}", marks=getattr(pytest.mark, stage)
    )
    for stage in BACKENDS
    for order in ("forward", "reverse")
    for case in CASES.values()
    if STAGES[stage].is_checked_on(case)
]


@pytest.mark.parametrize(("stage", "case_id", "order"), ORDERED)
def test_the_order_of_the_warps_does_not_matter(stage: str, case_id: str, order: str) -> None:
    def in_order(*step: object) -> Tensor:
        launch = BACKENDS[stage].prepare(DecodeStep(*step))
        launch.simulate(order=order)
        return launch.out

    result, _ = judge(stage_trial(STAGES[stage], case_id), in_order)
    assert result.passed, result.report()
