"""Every wrong example fails where its header says, and only the property it breaks."""

import importlib
import sys

import pytest
import torch
from distributed_trials import DISTRIBUTED
from profiles import QUICK
from simt_kernels.example import EXAMPLES as KERNELS
from simt_kernels.example import FAULTS
from triton_trials import TRITON_LAUNCH
from wrong_examples import (
    PACKAGE,
    SIMT,
    WrongExample,
    applied,
    load_examples,
    run_cases,
)

from pa_tutorial.checks.block_manager_check import BLOCK_MANAGER
from pa_tutorial.checks.engine_check import ENGINE
from pa_tutorial.checks.engine_scenes import SCENES
from pa_tutorial.checks.stories import STORIES
from pa_tutorial.text_changes import Change
from pa_tutorial.walk.cases import CASES, SHORT_CHECK
from pa_tutorial.walk.ladder import STAGES

EXAMPLES = load_examples()


def needs_triton(example: WrongExample) -> bool:
    stages = {stage for stage, _ in (*example.fails, *example.passes)}
    return bool(stages & {"triton", TRITON_LAUNCH})


by_name = pytest.mark.parametrize(
    "example",
    [
        pytest.param(example, id=example.name, marks=[pytest.mark.triton] * needs_triton(example))
        for example in EXAMPLES
    ],
)


def one_for_each_stage(pairs: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
    """The first case of each stage that is in the short check, else the first.

    So the short check is held to its promise; the sweep below runs them all.
    """
    last_wins = sorted(reversed(pairs), key=lambda pair: pair[1] in SHORT_CHECK)
    return tuple({stage: (stage, case) for stage, case in last_wins}.values())


@by_name
def test_wrong_example_fails_where_its_header_says_and_passes_its_controls(
    example: WrongExample,
) -> None:
    assert len(example.passes) == 3
    with applied(example):
        controls = run_cases(example.passes)  # first: a failure may end the ranks
        outcomes = run_cases(one_for_each_stage(example.fails))
    disturbed = {pair: outcome.report for pair, outcome in controls.items() if not outcome.passed}
    assert not disturbed, f"{example.name} disturbs its control cases: {disturbed}"
    passed = [pair for pair, outcome in outcomes.items() if outcome.passed]
    assert not passed, f"{example.name} is not caught by {passed}"
    if example.found_by:
        other_reports = {p: o.report for p, o in outcomes.items() if o.found_by != example.found_by}
        assert not other_reports, (
            f"{example.name} must be found as a {example.found_by}: {other_reports}"
        )
        return
    crashed = {pair: o.report for pair, o in outcomes.items() if o.error is None}
    assert not crashed, f"{example.name} does not compute anything: {crashed}"


def example_named(name: str) -> WrongExample:
    return next(example for example in EXAMPLES if example.name == name)


def test_an_offset_of_the_distance_is_seen_only_in_the_scores() -> None:
    """It cancels in the softmax, so without `probe` nobody would notice."""
    example = example_named("alibi_offset")
    with applied(example):
        outcomes = run_cases(example.fails)
    assert {outcome.quantity for outcome in outcomes.values()} == {"qk"}


def test_a_maximum_that_starts_at_zero_is_seen_only_far_below_zero() -> None:
    """The usual random inputs, and even huge scores, would pass."""
    stage = STAGES["online_softmax"]
    pairs = tuple((stage.name, case.id) for case in CASES.values() if stage.is_checked_on(case))
    with applied(example_named("maximum_starts_at_zero")):
        outcomes = run_cases(pairs)
    failed = {CASES[case_id].scores for (_, case_id), o in outcomes.items() if not o.passed}
    assert failed == {"deep_negative", "opposite", "extreme"}


def test_the_last_barrier_of_the_tree_is_missed_by_the_race_check_only() -> None:
    """The simulator runs the warps in lockstep: without its checks the result is right."""
    inputs = CASES["decode/worked_example"].paged("vllm")
    tensors = inputs.q, inputs.k_cache, inputs.v_cache, inputs.block_tables, inputs.seq_lens
    expected = STAGES["cuda_v1"].function(*tensors, inputs.scale)
    with applied(example_named("kernel_barrier_at_the_end_of_the_tree_missing")):
        changed = importlib.import_module("pa_tutorial.kernels.launch")
        prepared = changed.prepare_v1(*tensors, inputs.scale)
        prepared.simulate(checks=())
    assert torch.equal(prepared.out, expected)


def our_modules() -> dict[str, object]:
    return {name: module for name, module in sys.modules.items() if "pa_tutorial" in name}


def made_up(old: str) -> WrongExample:
    change = Change("walk/ladder.py", old, "STAGES = {}")
    return WrongExample("made_up", "why", (change,), fails=(), passes=())


def test_the_changed_package_is_gone_afterwards() -> None:
    last_line = (PACKAGE / "walk" / "ladder.py").read_text(encoding="utf-8").splitlines()[-1]
    before, finders = our_modules(), list(sys.meta_path)
    with applied(made_up(last_line)):
        from pa_tutorial.walk.ladder import STAGES as changed

        assert changed == {}
    assert our_modules() == before
    assert sys.meta_path == finders  # one left behind would change the next example too
    from pa_tutorial.walk.ladder import STAGES as again

    assert again is STAGES


def test_an_example_that_no_longer_fits_is_refused_and_changes_nothing() -> None:
    before = our_modules()
    with (
        pytest.raises(ValueError, match=r"in walk/ladder.py once, it stands there 0 times"),
        applied(made_up("no such line")),
    ):
        pass
    assert our_modules() == before


def test_there_is_a_wrong_example_for_every_stage() -> None:
    caught_in = {stage for example in EXAMPLES for stage, _ in example.fails}
    other_kinds = BLOCK_MANAGER, ENGINE, SIMT, TRITON_LAUNCH, DISTRIBUTED
    assert caught_in == {*STAGES, *other_kinds}


def test_no_two_wrong_examples_have_one_name() -> None:
    assert len({example.name for example in EXAMPLES}) == len(EXAMPLES)


# The test that runs a pair of stage and case as it is, for what is no stage of the ladder.
SEEN_BY = {
    BLOCK_MANAGER: "test_stories.py::test_block_manager_tells_the_story_as_plain_lists_do[{}]",
    ENGINE: "test_scenes.py::test_engine_plays_the_scene_as_each_request_alone[{}]",
    TRITON_LAUNCH: "test_triton_decode.py::test_every_trial_finds_nothing_wrong[{}]",
    DISTRIBUTED: "test_distributed_trials.py::test_every_trial_finds_nothing_wrong[{}]",
}


def id_of(stage: str, case: str) -> str:
    if stage != SIMT:
        return SEEN_BY.get(stage, f"test_ladder.py::test_stage_is_right[{stage}-{{}}]").format(case)
    if case in FAULTS:
        return (
            f"test_simt_kernels.py::test_the_right_check_finds_the_fault_at_the_right_line[{case}]"
        )
    return (
        f"test_simt_kernels.py::test_the_answer_is_right_and_no_check_cries_wolf[{case}-together]"
    )


def test_each_wrong_example_fails_in_make_test(request: pytest.FixtureRequest) -> None:
    """When somebody makes that mistake, `make test` must tell, and not only `make test-all`."""
    quick = request.config.stash[QUICK]
    files = {name.partition("::")[0] for name in quick}
    unseen = {}
    for example in EXAMPLES:
        tests = {id_of(*pair) for pair in example.fails}
        if {test.partition("::")[0] for test in tests} <= files and not tests & quick:
            unseen[example.name] = sorted(tests)
    assert unseen == {}


@pytest.mark.hours
@by_name
def test_sweep_over_all_cases(example: WrongExample, record_property) -> None:
    """Nothing named to fail may pass anywhere in a full sweep; what else fails is recorded."""
    kernels = tuple((SIMT, name) for name in (*KERNELS, *FAULTS))
    pairs = tuple(
        (stage.name, case.id)
        for stage in STAGES.values()
        for case in CASES.values()
        if stage.is_checked_on(case)
    )
    pairs += tuple((BLOCK_MANAGER, story) for story in STORIES)
    pairs += tuple((ENGINE, scene) for scene in SCENES)
    if {stage for stage, _ in example.fails} == {SIMT}:
        pairs = kernels
    pairs = tuple(dict.fromkeys((*pairs, *example.passes, *example.fails)))  # trials, too
    with applied(example):
        outcomes = run_cases(pairs)
    failed = {pair for pair, outcome in outcomes.items() if not outcome.passed}
    record_property("fails", sorted(failed))
    print(f"{example.name}: fails in {len(failed)} of {len(pairs)}")
    assert set(example.fails) <= failed
    assert not set(example.passes) & failed
