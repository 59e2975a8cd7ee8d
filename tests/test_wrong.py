"""Every wrong example fails in the cases that it names, and passes its control."""

import pytest

from pa_tutorial.checks import block_manager_check, prefix_cache_check
from pa_tutorial.checks.block_manager_check import BLOCK_MANAGER
from pa_tutorial.checks.cases import CASES, SHORT_CHECK
from pa_tutorial.checks.engine_check import ENGINE, SCENES
from pa_tutorial.checks.ladder import STAGES
from pa_tutorial.checks.prefix_cache_check import PREFIX_CACHE
from tests.cache_trials import CACHE_WRITES
from tests.distributed_trials import DISTRIBUTED
from tests.profiles import QUICK
from tests.simt.kernels.example import EXAMPLES as KERNELS
from tests.simt.kernels.example import FAULTS
from tests.triton_trials import TRITON_LAUNCH
from tests.wrong_examples import SIMT, WrongExample, applied, load_examples, run_cases

EXAMPLES = load_examples()
# One for each stage, each check of the simulator, and what else is checked.
IN_MAKE_TEST = (
    *("mask_off_by_one", "ratio_inverted", "last_block_dropped", "maximum_of_the_first_token"),
    *("newest_token_left_out", "kernel_naive_barrier_missing", "kernel_accs_not_zeroed"),
    *("kernel_warps_without_blocks_leave", "kernel_row_of_v_cut_by_lanes"),
    *("kernel_reduce_without_rescaling", "triton_table_cut", "triton_block_offset_in_32_bits"),
    *("copy_skipped", "engine_blocks_kept_at_the_end", "simt_barrier_waits_for_nobody"),
    *("simt_reads_do_not_race", "simt_sectors_from_the_first_byte"),
)


def marks(example: WrongExample) -> list[pytest.MarkDecorator]:
    stages = {stage for stage, _ in (*example.fails, *example.passes)}
    return [pytest.mark.triton] if stages & {"triton", TRITON_LAUNCH} else []


by_name = pytest.mark.parametrize(
    "example",
    [pytest.param(example, id=example.name, marks=marks(example)) for example in EXAMPLES],
)


def one_for_each_stage(pairs: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
    """The first case of each stage that is in the short check, else the first.

    So the short check is held to its promise; the sweep below runs them all.
    """
    last_wins = sorted(reversed(pairs), key=lambda pair: pair[1] in SHORT_CHECK)
    return tuple({stage: (stage, case) for stage, case in last_wins}.values())


@pytest.mark.rest("the tests that id_of names, below", keep=IN_MAKE_TEST)
@by_name
def test_wrong_example_is_caught(example: WrongExample) -> None:
    """In the first case that it names for each stage, and its control passes."""
    assert example.passes
    with applied(example):
        controls = run_cases(example.passes)  # first: a failure may end the ranks
        outcomes = run_cases(one_for_each_stage(example.fails))
    disturbed = {pair: outcome.report for pair, outcome in controls.items() if not outcome.passed}
    assert not disturbed, f"{example.name} disturbs its control: {disturbed}"
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


@by_name
def test_wrong_example_has_its_place(example: WrongExample) -> None:
    """A change of our code may take it away; most are applied in `make test-all` only."""
    assert example.sources()


def test_there_is_a_wrong_example_for_every_stage_and_no_two_have_one_name() -> None:
    caught_in = {stage for example in EXAMPLES for stage, _ in example.fails}
    trials = {CACHE_WRITES, TRITON_LAUNCH, DISTRIBUTED}
    assert caught_in == {*STAGES, BLOCK_MANAGER, PREFIX_CACHE, ENGINE, SIMT, *trials}
    assert len({example.name for example in EXAMPLES}) == len(EXAMPLES)


# The test that runs a pair of stage and case as it is, for what is no stage of the ladder.
LADDER = "test_ladder.py::test_stage_is_right[{stage}-{case}]"
FAULT = "test_the_right_check_finds_the_fault_at_the_right_line[{case}]"
RIGHT = "test_the_answer_is_right_and_no_check_cries_wolf[{case}-together]"
STORY = "test_our_pages_tell_the_story_as_plain_lists_do"
SEEN_BY = {
    BLOCK_MANAGER: f"test_stories.py::{STORY}[{{case}}]",
    PREFIX_CACHE: f"test_stories.py::{STORY}[{{case}}]",
    ENGINE: "test_scenes.py::test_engine_plays_the_scene_as_each_request_alone[{case}]",
    CACHE_WRITES: "test_quantization.py::test_every_trial_finds_nothing_wrong[{case}]",
    TRITON_LAUNCH: "test_triton_decode.py::test_every_trial_finds_nothing_wrong[{case}]",
    DISTRIBUTED: "test_distributed_context.py::test_every_trial_finds_nothing_wrong[{case}]",
}


def id_of(stage: str, case: str) -> str:
    simt = f"test_simt_kernels.py::{FAULT if case in FAULTS else RIGHT}"
    return (simt if stage == SIMT else SEEN_BY.get(stage, LADDER)).format(stage=stage, case=case)


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
    if {stage for stage, _ in example.fails} == {SIMT}:
        pairs = [(SIMT, name) for name in (*KERNELS, *FAULTS)]
    else:
        stages = [(s, c) for s in STAGES.values() for c in CASES.values() if s.is_checked_on(c)]
        pairs = [(stage.name, case.id) for stage, case in stages]
        pairs += [(BLOCK_MANAGER, story) for story in block_manager_check.STORIES]
        pairs += [(PREFIX_CACHE, story) for story in prefix_cache_check.STORIES]
        pairs += [(ENGINE, scene) for scene in SCENES]
    pairs = tuple(dict.fromkeys((*pairs, *example.passes, *example.fails)))  # trials, too
    with applied(example):
        outcomes = run_cases(pairs)
    failed = {pair for pair, outcome in outcomes.items() if not outcome.passed}
    record_property("fails", sorted(failed))
    print(f"{example.name}: fails in {len(failed)} of {len(pairs)}")
    assert set(example.fails) <= failed
    assert not set(example.passes) & failed
