"""The paged kernels in other orders than the ladder's "together", and what is wrong first."""

import re
from dataclasses import replace

import pytest
from torch import Tensor

from pa_tutorial.checks.running import judge, stage_trial
from pa_tutorial.kernels.changed import changed
from pa_tutorial.kernels.intermediates import look_at_v1
from pa_tutorial.kernels.launch import prepare_naive, prepare_v1, run_probed
from pa_tutorial.kernels.paged_attention import paged_attention
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

    def decode(*tensors: object, probe: dict[str, Tensor]) -> Tensor:
        prepared = prepare_v1(*tensors)
        return run_probed(replace(prepared, kernel=wrong(prepared.geometry)), look_at_v1, probe)

    result, _ = judge(stage_trial(STAGES["cuda_v1"], f"decode/{case}"), decode)
    assert re.search(said, result.diagnosis), result.diagnosis
    # A wrong maximum need not show in the output.
    assert ("out itself is within its bound" in result.diagnosis) >= ("qk_max" in said)
