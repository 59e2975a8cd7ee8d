"""Every stage on every case, against the oracle and the stages before it."""

import pytest
import torch

from pa_tutorial.cases import CASES
from pa_tutorial.checks.running import judge, stage_trial
from pa_tutorial.ladder import STAGES, Stage, stage_named

STAGE_CASES = [
    pytest.param(
        stage, case.id, id=f"{stage.name}-{case.id}", marks=getattr(pytest.mark, stage.name)
    )
    for stage in STAGES.values()
    for case in CASES.values()
    if case.kind in stage.own_kinds
]


@pytest.mark.parametrize(("stage", "case_id"), STAGE_CASES)
def test_stage_is_right(stage: Stage, case_id: str) -> None:
    case, comparisons = judge(stage_trial(stage, case_id), None)
    assert case.passed, case.report()
    assert {c.reference for c in comparisons} == {"the oracle", *stage.checked_against}


def test_every_stage_is_checked_against_one_before_it() -> None:
    names = list(STAGES)
    for index, stage in enumerate(STAGES.values()):
        assert set(stage.checked_against) <= set(names[:index])
        assert stage.checked_against or index == 0


def test_unknown_stage_is_named_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"'kv_cahce'.*full_recompute, kv_cache"):
        stage_named("kv_cahce")


@pytest.mark.parametrize("kind", ["sequence/two_layers", "decode/gqa"])
def test_a_stage_cannot_change_what_the_next_one_sees(kind: str) -> None:
    def vandal(q, k, v, scale, alibi_slopes=None):
        out = STAGES["kv_cache"].function(q, k, v, scale, alibi_slopes)
        for tensor in (q, k, v):
            tensor.zero_()
        return out

    before = STAGES["kv_cache"].run(CASES[kind])["out"]
    STAGES["kv_cache"].run(CASES[kind], vandal)
    assert torch.equal(STAGES["kv_cache"].run(CASES[kind])["out"], before)
