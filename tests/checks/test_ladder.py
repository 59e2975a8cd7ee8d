"""Every stage on every case, against the oracle and the stages before it; and the cases themselves.

That a case is as hostile as it says, the wrong examples show that it catches.
"""

import functools
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from pa_tutorial.attention.cached import cached_attention
from pa_tutorial.checks.calls import AnswerError
from pa_tutorial.checks.cases import CASES, DECODE_CASES, SHORT_CHECK
from pa_tutorial.checks.ladder import STAGES, Stage, backend_named
from pa_tutorial.checks.problem import DecodeProblem, SequenceProblem
from pa_tutorial.checks.running import Trial, judge, stage_trial
from pa_tutorial.paging.layouts import LAYOUTS, by_token

# The cases of a kernel in `make test`: the short check, which catches each wrong kernel. The CPU's
# is compiled anew for each geometry: these need no kernel of their own, but for the 8-bit cache.
OF_THE_CPU = (
    *("gqa", "bfloat16", "many_sequences", "long_context", "alibi", "drifting_scores", "tail"),
    *("stale_slots_far_above", "float8_e4m3"),
)
IN_MAKE_TEST = {
    **dict.fromkeys(("cuda_naive", "cuda_v1", "cuda_v1_vector", "cuda_v2", "triton"), SHORT_CHECK),
    "cpu": [CASES[f"decode/{name}"].id for name in OF_THE_CPU],
}


def marks_of(stage: Stage, case_id: str) -> list[pytest.MarkDecorator]:
    marks = [getattr(pytest.mark, stage.name)]
    if stage.name.startswith("cuda") and case_id in SHORT_CHECK:
        marks.append(pytest.mark.macos)
    if case_id not in IN_MAKE_TEST.get(stage.name, CASES):
        marks.append(pytest.mark.rest("the other cases"))
    return marks


STAGE_CASES = [
    pytest.param(stage, case.id, id=f"{stage.name}-{case.id}", marks=marks_of(stage, case.id))
    for case in CASES.values()  # the stages of a case together: a stage is what the next is held to
    for stage in STAGES.values()
    if stage.is_checked_on(case)
]


@functools.lru_cache(maxsize=32)
def result_of(stage: str, case_id: str) -> dict[str, torch.Tensor]:
    """What a stage computes, once in a process: in the simulator it takes seconds."""
    return STAGES[stage].run(CASES[case_id])


def trial_of(stage: Stage, case_id: str) -> Trial:
    """stage_trial, by results that are kept."""
    trial = stage_trial(stage, case_id)
    before = [name for name in stage.checked_against if STAGES[name].reads(CASES[case_id])]
    kept = {name: functools.partial(result_of, name, case_id) for name in before}
    run = functools.partial(result_of, stage.name, case_id)
    return replace(trial, run=lambda _: run(), references={**trial.references, **kept})


@pytest.mark.parametrize(("stage", "case_id"), STAGE_CASES)
def test_stage_is_right(stage: Stage, case_id: str) -> None:
    trial = trial_of(stage, case_id)
    case, comparisons = judge(trial, None)
    assert case.passed, case.report()
    assert {comparison.reference for comparison in comparisons} == set(trial.references)
    assert "the oracle" in trial.references


OF_A_HEAD = frozenset({"qk_max", "exp_sum", "accs"})
INTERMEDIATES = {
    **dict.fromkeys(("online_softmax", "paged_online"), frozenset({"qk"})),
    "cuda_naive": {"qk", "qk_max", "exp_sum"},
    **dict.fromkeys(("cuda_v1", "cuda_v1_vector", "cuda_v2"), OF_A_HEAD | {"qk", "logits"}),
    **dict.fromkeys(("cpu", "triton"), OF_A_HEAD),  # their scores never leave the registers
}


@pytest.mark.parametrize("stage", STAGES.values(), ids=lambda stage: stage.name)
def test_a_stage_gives_the_intermediates_that_it_promises(stage: Stage) -> None:
    result = stage.run(CASES[f"{stage.own_kinds[0]}/gqa"])
    assert set(result) == INTERMEDIATES.get(stage.name, {"qk", "logits"}) | {"out"}


def changing(number: int) -> Callable:
    """Right, but one of its inputs is another afterwards."""

    def function(*inputs):
        out = cached_attention(*inputs)
        inputs[number].mul_(1.4427)  # log2(e): a kernel with exp2 folds it into the slopes
        return out

    return function


@pytest.mark.parametrize("kind", ["sequence", "decode"])
@pytest.mark.parametrize(
    ("function", "message"),
    [
        (changing(0), "changed q"),
        (changing(4), "changed alibi_slopes"),
        (lambda q, k, v, *others: v[-len(q) :], "returned v itself"),
    ],
)
def test_a_stage_reads_its_inputs_and_returns_new_memory(kind, function, message) -> None:
    stage, case = STAGES["kv_cache"], CASES[f"{kind}/alibi"]
    with pytest.raises(AnswerError, match=message):
        stage.run(case, function)
    assert torch.equal(stage.run(case)["out"], stage.run(case)["out"])


def test_a_result_that_the_next_call_overwrites_is_refused_but_nan_is_no_change() -> None:
    stage, case = STAGES["paged_gather"], CASES["decode/worked_example"]
    kept = torch.full((1, 4, 32), torch.nan, dtype=torch.float16)
    with pytest.raises(AnswerError, match="the next call changed this result"):
        stage.run(case, lambda q, **others: kept.copy_(q))
    out = stage.run(case, lambda q, **others: torch.full_like(q, torch.nan))["out"]
    assert out.isnan().all()


def test_each_intermediate_may_be_given_alone_but_in_every_call() -> None:
    def only_logits(q, k, v, scale, slopes, probe):
        out = cached_attention(q, k, v, scale, slopes, inner := {})
        probe["logits"] = inner["logits"].numpy()
        return out

    def sometimes(q, k, v, scale, slopes, probe):
        return cached_attention(q, k, v, scale, slopes, probe if len(q) > 1 else None)

    stage, case = STAGES["kv_cache"], CASES["sequence/two_layers"]
    assert stage.run(case, only_logits, ["probe"]).keys() == {"logits", "out"}
    with pytest.raises(AnswerError, match=r"'qk'. was filled in 2 of 10 calls"):
        stage.run(case, sometimes, ["probe"])


PAGED = [
    pytest.param(stage, id=name, marks=getattr(pytest.mark, name))
    for name, stage in STAGES.items()
    if stage.is_paged
]


@pytest.mark.parametrize("name", ["q", "k_cache", "v_cache"])
@pytest.mark.parametrize("stage", PAGED)
def test_a_nan_of_a_token_is_in_all_that_reads_it(stage: Stage, name: str) -> None:
    """A maximum may pass over it, the weights may not. Here the last token of the first sequence
    has it: in a slot after that, it would not be read."""
    backend = backend_named(stage.name)
    case = DecodeProblem("nan", seq_lens=(40, 20), num_kv_heads=2)
    inputs = case.paged(backend.layout)
    k_tokens, v_tokens = by_token(inputs.k_cache, inputs.v_cache)
    block, offset = inputs.block_tables[0, 2], 39 % 16
    expected = torch.zeros_like(inputs.q, dtype=torch.bool)
    if name == "q":
        inputs.q[0, 2, 5], expected[0, 2] = torch.nan, True
    elif name == "k_cache":
        k_tokens[block, offset, 1], expected[0, 2:] = torch.nan, True
    else:
        v_tokens[block, offset, 1, 5], expected[0, 2:, 5] = torch.nan, True
    out = backend.prepare(inputs, **stage.sizes(case)).run()
    assert torch.equal(out.isnan(), expected)


def test_every_stage_is_checked_against_one_before_it() -> None:
    names = list(STAGES)
    for index, stage in enumerate(STAGES.values()):
        assert set(stage.checked_against) <= set(names[:index])
        assert stage.checked_against or index == 0


def test_the_stages_of_the_kernel_are_its_backends() -> None:
    """Each gives the same output, so no check would see one in the place of another."""
    for name in ("naive", "v1", "v1_vector", "v2"):
        assert backend_named(f"cuda_{name}").kernel == name


def owned_slots(case: DecodeProblem) -> torch.Tensor:
    """[num_blocks, block_size], whether a token of a sequence lives there."""
    tables, num_blocks = case.block_tables()
    owned = torch.zeros(num_blocks, case.block_size, dtype=torch.bool)
    for table, seq_len in zip(tables, case.seq_lens, strict=True):
        for token in range(seq_len):
            owned[table[token // case.block_size], token % case.block_size] = True
    return owned


@pytest.mark.parametrize("case", DECODE_CASES, ids=lambda case: case.name)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_slot_that_no_token_owns_is_nan_and_no_other(case, layout) -> None:
    inputs = case.paged(layout)
    owned = owned_slots(case)
    for tokens in by_token(inputs.k_cache, inputs.v_cache):
        is_nan = tokens.isnan().flatten(2)
        assert is_nan[~owned].all() or case.stale
        assert not is_nan[owned].any()
        assert not (case.stale and is_nan.any())


FLOAT8 = {"cache_dtype": torch.float8_e4m3fn}


@pytest.mark.parametrize(
    ("make", "changes", "message"),
    [
        (DecodeProblem, {"seq_lens": (4, 0)}, r"seq_lens is \(4, 0\)"),
        (DecodeProblem, {"head_size": 40} | FLOAT8, "head_size is 40"),
        (DecodeProblem, {"cache_dtype": "fp8"}, "cache_dtype is fp8"),
        (DecodeProblem, FLOAT8 | {"v_scale": (0.0,)}, "v_scale is .0.0,."),
        (DecodeProblem, {"k_scale": (0.5,)}, "k_scale is"),
        (DecodeProblem, {"scores": "loud"}, "scores is loud"),
        (DecodeProblem, {"shared_blocks": 2}, "shared_blocks is 2"),
        (SequenceProblem, {"steps": ()}, "steps is"),
        (SequenceProblem, {"trained": True, "steps": (1000,)}, "steps is .*at most"),
    ],
)
def test_impossible_problems_are_refused(make: type, changes: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make("name", **changes)
