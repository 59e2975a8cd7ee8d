"""The paged kernels in other orders than the ladder's "together", and what is wrong first."""

import re
from dataclasses import replace

import pytest
from torch import Tensor

from pa_tutorial.attention.step import DecodeStep
from pa_tutorial.checks.running import judge, stage_trial
from pa_tutorial.kernels.loads import element_loads
from pa_tutorial.kernels.paged_attention import paged_attention
from pa_tutorial.kernels.prepare import PagedBackend, naive_backend, v1_backend
from pa_tutorial.kernels.running import PagedLaunch
from pa_tutorial.walk.cases import CASES
from pa_tutorial.walk.ladder import STAGES
from tests.changed import changed

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


ONE_LANE = "qk_max = red_smem[lane] if lane < {} else"
LOST = "            exp_sum {} val\n"
WRONG = [  # the change of the kernel, the case that shows it, and the diagnosis
    ("qk = scale * qk_dot(", "qk = scale * scale * qk_dot(", "gqa", "wrong: qk, "),
    (ONE_LANE.format("NUM_WARPS"), ONE_LANE.format(1), "shuffled_blocks", "wrong: qk_max"),
    (LOST.format("+="), LOST.format("="), "shuffled_blocks", "wrong: exp_sum, "),
    ("(exp_sum + float32(1e-6))", "(exp_sum + float32(1e-2))", "gqa", "wrong: logits, "),
    ("logits_vec[j] * v_vec[j]", "logits_vec[j] * v_vec[0]", "gqa", "wrong: accs, "),
    # accs are added up by the check, not by the kernel's tree
    ("accs[j] += out_smem[", "accs[j] = out_smem[", "gqa", "^worst against the oracle: "),
]


@pytest.mark.cuda_v1
@pytest.mark.parametrize(("old", "new", "case", "said"), WRONG, ids=[one[3] for one in WRONG])
def test_a_failing_check_names_what_is_wrong_first(
    old: str, new: str, case: str, said: str
) -> None:
    wrong = changed(paged_attention, old, new)

    class WrongBackend(PagedBackend):
        def prepare(self, step: DecodeStep) -> PagedLaunch:
            launch = super().prepare(step)
            return replace(launch, kernel=wrong(launch.geometry))

    trial = stage_trial(STAGES["cuda_v1"], f"decode/{case}")
    result, _ = judge(trial, WrongBackend(element_loads))
    assert re.search(said, result.diagnosis), result.diagnosis
    # A wrong maximum need not show in the output.
    assert ("out itself is within its bound" in result.diagnosis) >= ("qk_max" in said)
