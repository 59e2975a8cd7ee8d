"""The paged kernels in other orders, with NaN around them, and what is wrong first.

The order "together" is that of the ladder: tests/walk/test_ladder.py.
"""

import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from pa_tutorial.checks.running import judge, stage_trial
from pa_tutorial.kernels.changed import changed
from pa_tutorial.kernels.intermediates import (
    MARKS,
    NAMES,
    ROWS_DONE,
    SCORES_DONE,
    SUM_DONE,
    WEIGHTS_DONE,
    look_at_v1,
    of_all,
)
from pa_tutorial.kernels.launch import (
    Launch,
    prepare_naive,
    prepare_v1,
    run_probed,
)
from pa_tutorial.kernels.paged_attention import paged_attention
from pa_tutorial.walk.cases import CASES
from pa_tutorial.walk.ladder import STAGES
from pa_tutorial.walk.problem import DecodeProblem

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


# NaN ------------------------------------------------------------------------------------------


def has_poisoned_slots(case: object) -> bool:
    """A last block that is not full: the kernel reads slots there that hold NaN. Without the long
    cases: their last block is like any other, and NaN would have to come from it."""
    if not isinstance(case, DecodeProblem) or case.stale or max(case.seq_lens) >= 1000:
        return False
    return any(seq_len % case.block_size for seq_len in case.seq_lens)


POISONED = [case.id for case in CASES.values() if has_poisoned_slots(case)]


@pytest.mark.cuda_v1
@pytest.mark.parametrize("case_id", POISONED)
def test_no_nan_gets_past_the_last_token(case_id: str) -> None:
    """NaN comes out of K and V all the time; each lane must drop it before it counts.

    A score that is NaN would not show in qk_max, for max(qk_max, NaN) is qk_max: the test after
    this one looks at that mask.
    """
    case = CASES[case_id]
    prepared = prepare_v1(**vars(case.paged("vllm")))
    report = prepared.simulate(watch=MARKS, names=NAMES)
    for where, name in (
        *((mark, "logits") for mark in (SCORES_DONE, SUM_DONE, WEIGHTS_DONE)),
        *((SCORES_DONE, "qk_max"), (SUM_DONE, "exp_sum"), (ROWS_DONE, "accs")),
    ):
        snapshots = report.at(where)
        assert len(snapshots) == np.prod(prepared.grid)
        for snapshot in snapshots:
            values = snapshot[name]
            if name == "logits":  # a shared array: what lies behind is not written
                seq_len = case.seq_lens[snapshot.block[1]]
                padded = -(-seq_len // case.block_size) * case.block_size
                assert not np.ma.getmaskarray(values[:padded]).any(), f"a hole at {where}"
                values = values.compressed()
            assert np.isfinite(np.ma.filled(values, np.nan)).all(), f"{name} in {snapshot.block}"
    assert torch.isfinite(prepared.out).all()


HUGE = 1e30  # its products with q stay finite in float32
MASKED, UNMASKED = "qk_max = qk_max if mask else max(qk_max, qk)", "qk_max = max(qk_max, qk)"


def qk_max_of(prepared: Launch) -> np.ndarray:
    report = prepared.simulate(watch=SCORES_DONE, names="qk_max")
    return of_all(report, SCORES_DONE, lambda snapshot: snapshot["qk_max"][:1]).numpy()


@pytest.mark.cuda_v1
def test_no_score_behind_the_last_token_becomes_the_maximum() -> None:
    """There, K is such that the score is huge, for every head. (A KV head for each head: one sign
    of K suits it.)"""
    case = CASES["decode/tail"]
    paged = case.paged("vllm")
    for seq_idx, seq_len in enumerate(case.seq_lens):
        last, used = divmod(seq_len, case.block_size)
        block = paged.k_cache[paged.block_tables[seq_idx, last]]  # [heads, size/x, block_size, x]
        assert block[:, :, used:].isnan().all()
        assert not block[:, :, :used].isnan().any()
        keys = HUGE * paged.q[seq_idx].sign().unflatten(1, (block.shape[1], 1, block.shape[3]))
        block[:, :, used:] = keys
    prepared = prepare_v1(**vars(paged))
    np.testing.assert_allclose(qk_max_of(prepared), case.expected()["qk_max"], rtol=1e-5)
    unmasked = changed(paged_attention, MASKED, UNMASKED)(prepared.geometry)
    found = qk_max_of(replace(prepared, kernel=unmasked))
    assert (found > HUGE).all(), "or the line above would say nothing"


# What is wrong first --------------------------------------------------------------------------

ONE_LANE = "qk_max = red_smem[lane] if lane < {} else"
LOST = "            exp_sum {} val\n"
WRONG = [  # the change of the kernel, the case that shows it, and the diagnosis
    ("qk = scale * qk_dot(", "qk = scale * scale * qk_dot(", "gqa", "wrong: qk, "),
    (
        ONE_LANE.format("NUM_WARPS"),
        ONE_LANE.format(1),
        "shuffled_blocks",
        "wrong: qk_max",
    ),
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
