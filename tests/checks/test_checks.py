"""The shared checks: they can fail, they say why, and nothing slips through."""

import subprocess
import sys
from dataclasses import replace
from decimal import Decimal

import numpy as np
import pytest
import torch
from wrong_examples import WrongExample, applied, load_examples, run_cases

from pa_tutorial.attention.cached import cached_attention
from pa_tutorial.attention.full import unmasked_attention
from pa_tutorial.checks import CheckFailure, attempt, check
from pa_tutorial.checks.__main__ import main
from pa_tutorial.checks.block_manager_check import story_trial
from pa_tutorial.checks.comparing import compare, load_bounds, relative_errors
from pa_tutorial.checks.diagnosing import _position_pattern
from pa_tutorial.checks.engine_scenes import SCENES
from pa_tutorial.checks.running import judge
from pa_tutorial.checks.showing import CaseResult, Result, rows
from pa_tutorial.checks.stories import STORIES
from pa_tutorial.paging.prefix_cache import PrefixCachingAllocator
from pa_tutorial.walk.calls import AnswerError
from pa_tutorial.walk.cases import CASES, SEQUENCE_CASES, SHORT_CHECK
from pa_tutorial.walk.ladder import STAGES


def test_check_raises_an_assertion_error_that_holds_the_result() -> None:
    with pytest.raises(AssertionError, match="earlier ones see tokens that come after") as raised:
        check("full_recompute", lambda q, k, v, scale, slopes: unmasked_attention(q, k, v, scale))
    assert isinstance(raised.value, CheckFailure)
    result = raised.value.result
    assert (result.passed, result.total, result.ok) == (1, len(SEQUENCE_CASES), False)
    assert result.first_failure.name == "sequence/one_layer"


def test_attempt_does_not_raise_and_a_right_function_passes() -> None:
    def mine(q, k, v, scale, alibi_slopes=None):
        return cached_attention(q, k, v, scale, alibi_slopes)

    result = attempt("kv_cache", mine)
    assert result.ok
    assert result.first_failure is None
    assert result.references == ("the oracle", "full_recompute")


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (lambda q: None, "returned None: not written yet"),
        (lambda q: q * float("nan"), "the output holds NaN"),
        (lambda q: torch.zeros_like(q), "all zero: nothing was written"),
        (lambda q: q[:-1], "it must return the shape, dtype and device of q"),
        (lambda q: q.double(), "it must return the shape, dtype and device of q"),
        (lambda q: q.tolist(), "returned a list; it must return a tensor"),
        (lambda q: 1 / 0, "it raised ZeroDivisionError"),
        (lambda q: sys.exit("bye"), "it raised SystemExit: bye"),
    ],
)
def test_nothing_else_passes_and_the_reason_is_given(answer, message) -> None:
    result = attempt("full_recompute", lambda q, *arguments: answer(q))
    assert result.passed == 0
    assert message in str(result)
    assert message in result._repr_html_()


def test_a_function_of_none_is_a_mistake_and_not_our_own_stage() -> None:
    with pytest.raises(TypeError, match="function is None; it must be something"):
        attempt("kv_cache", None)


def test_a_callable_that_counts_as_false_is_run() -> None:
    class Zeros:
        def __len__(self) -> int:
            return 0

        def __call__(self, q, k, v, scale, slopes):
            return torch.zeros_like(q)

    assert attempt("full_recompute", Zeros()).passed == 0


def test_what_a_function_does_to_torch_is_undone() -> None:
    def disturbing(q, k, v, scale, slopes):
        torch.set_default_dtype(torch.float16)
        torch.set_default_device("meta")
        torch.manual_seed(0)
        return torch.zeros_like(q)

    state = torch.get_rng_state()
    attempt("full_recompute", disturbing)
    assert torch.get_default_dtype() == torch.float32
    assert torch.get_default_device() == torch.device("cpu")
    assert torch.equal(torch.get_rng_state(), state)
    assert attempt("full_recompute").ok


@pytest.mark.parametrize("error", [SystemExit("bye"), GeneratorExit(), MemoryError()])
def test_no_exception_of_a_function_ends_the_attempt(error: BaseException) -> None:
    def raising(*arguments):
        raise error

    assert attempt("full_recompute", raising).passed == 0


def test_an_exception_without_a_readable_message_is_named() -> None:
    class Unreadable(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    def raising(*arguments):
        raise Unreadable

    assert "it raised Unreadable" in str(attempt("full_recompute", raising))


def test_a_wrong_intermediate_fails_even_if_the_output_is_right() -> None:
    def stretched_scores(q, k, v, scale, slopes=None, probe=None):
        out = cached_attention(q, k, v, scale, slopes, probe)
        probe["qk"] = 1.1 * probe["qk"]  # after the softmax has read it
        return out

    result = attempt("kv_cache", stretched_scores)
    assert result.passed == 0
    assert "first wrong: qk" in result.first_failure.diagnosis
    assert "out itself is within its bound" in result.first_failure.diagnosis


def test_unknown_name_lists_what_there_is() -> None:
    with pytest.raises(ValueError, match=r"'kvcache'.*kv_cache.*attend_newest"):
        attempt("kvcache")


# --- comparing


def test_relative_error_is_a_norm_over_the_row() -> None:
    expected = np.array([[3.0, 4.0], [0.0, 0.0]])
    assert relative_errors(expected, expected).tolist() == [0.0, 0.0]
    assert relative_errors(expected + np.array([0, 0.5]), expected).tolist() == [0.1, 0.5]


@pytest.mark.parametrize(
    ("actual", "expected"),
    [
        ([1.0, np.nan], [1.0, 1.0]),
        ([1.0, np.inf], [1.0, 1.0]),
        ([1.0, -np.inf], [1.0, 1.0]),
        ([1.0, 1.0], [1.0, -np.inf]),
        ([1.0, np.nan], [1.0, -np.inf]),
    ],
)
def test_nan_and_misplaced_infinity_are_an_infinite_error(actual, expected) -> None:
    assert relative_errors(np.array(actual), np.array(expected)) == np.inf
    (comparison,) = compare(
        {"out": np.array(actual)}, {"r": {"out": np.array(expected)}}, {"out": 1e9}
    )
    assert not comparison.passed


def test_masked_scores_must_stand_in_the_same_places() -> None:
    masked = np.array([1.0, -np.inf])
    assert relative_errors(masked, masked) == 0.0


def test_shapes_must_agree() -> None:
    with pytest.raises(AnswerError, match=r"out has shape \(2,\); the oracle has \(3,\)"):
        compare({"out": np.zeros(2)}, {"the oracle": {"out": np.zeros(3)}}, {"out": 1.0})


# --- showing


def test_neighbours_that_isolate_the_same_share_a_row() -> None:
    def passed(name: str, isolates: str) -> CaseResult:
        return CaseResult(name, isolates, "", True, 0.0, 0.0)

    cases = [passed(f"size_{number}", "sizes") for number in (8, 16, 32)]
    cases += [passed("first_story", "stories"), passed("other_one", "stories")]
    cases += [passed("alone", "one")]
    names = [row[0] for row in rows(Result("title", ("us",), tuple(cases)))]
    assert names == ["size_8 … 32 (3)", "first_story … other_one (2)", "alone"]


def test_whole_numbers_are_shown_as_whole_numbers() -> None:
    case, _ = judge(story_trial("fork_and_write"), Wasteful)
    assert "should be 2" in case.diagnosis


class Wasteful(PrefixCachingAllocator):
    """Takes a block too many, once."""

    def __init__(self, *arguments: object) -> None:
        super().__init__(*arguments)
        self.allocate()


# --- bounds


@pytest.mark.parametrize("case_id", CASES)
def test_bounds_keep_their_rule_and_record_both_figures(case_id: str) -> None:
    for figures in load_bounds()[case_id].values():
        assert 0 < figures["bound"] <= 10 * figures["worst_correct"]
        assert figures["stage"] in STAGES
    out = load_bounds()[case_id]["out"]
    assert out["wrong_example"] in {example.name for example in load_examples()}
    bound, smallest_wrong = (Decimal(str(out[name])) for name in ("bound", "smallest_wrong"))
    assert 10 * bound <= smallest_wrong  # as they are written: 0.41 / 10 is less than 0.041


def test_what_is_seen_only_in_the_scores_bounds_the_scores() -> None:
    for case_id in ("decode/alibi", "decode/gqa_alibi", "decode/alibi_block_size_8"):
        qk, out = load_bounds()[case_id]["qk"], load_bounds()[case_id]["out"]
        assert qk["wrong_example"] == "alibi_offset"
        assert qk["bound"] <= qk["smallest_wrong"] / 10
        assert out["wrong_example"] != "alibi_offset"


def test_no_bound_without_a_case() -> None:
    assert set(load_bounds()) == set(CASES)


# --- diagnosing

DIAGNOSES = {
    "no_causal_mask": "earlier ones see tokens that come after them",
    "separate_weights_for_decode": "the prompt is right and decode is wrong",
    "kv_head_is_head": "look at which KV head each one reads",
    "whole_reservation_read": "the output holds NaN",
    "maximum_not_subtracted": "the output holds NaN",
    "cache_overwritten_from_the_start": "the output holds NaN",
    "scale_after_softmax": "first wrong: qk",
}


def test_position_patterns() -> None:
    def pattern(wrong: str, prompt_len: int) -> str:
        return _position_pattern(np.array([letter == "x" for letter in wrong]), prompt_len) or ""

    assert "see tokens that come after" in pattern("xxxx.", 5)
    assert "see tokens that come after" in pattern("xxxx.", 3)
    assert "prompt is right and decode is wrong" in pattern("...xx", 3)
    assert "decode is right and the prompt is wrong" in pattern("xx...", 3)
    assert pattern("...x.", 5) == ""
    assert pattern("xxxxx", 3) == ""


@pytest.mark.parametrize(
    "example", [e for e in load_examples() if e.name in DIAGNOSES], ids=lambda e: e.name
)
def test_diagnosis_points_at_the_mistake(example: WrongExample) -> None:
    with applied(example):
        outcomes = run_cases(example.fails)
    assert any(DIAGNOSES[example.name] in outcome.report for outcome in outcomes.values())


# --- the short check

KERNELS = [name for name in STAGES if name.startswith("cuda_") or name in ("cpu", "triton")]


def test_no_kept_mistake_in_a_kernel_passes_the_short_check() -> None:
    fails = {
        (example.name, stage): {case for other, case in example.fails if other == stage}
        for example in load_examples()
        for stage, _ in example.fails
        if stage in KERNELS
    }
    assert len(fails) > 90
    assert [pair for pair, cases in fails.items() if not cases & set(SHORT_CHECK)] == []


def test_short_check_runs_its_cases_only() -> None:
    result = check("paged_gather", short=True)
    assert {case.name for case in result.cases} == set(SHORT_CHECK)
    assert not attempt("paged_gather", lambda q, *arguments: q, short=True).ok


@pytest.mark.parametrize("name", ["kv_cache", "block_manager", "engine", "widest_load"])
def test_short_check_of_what_has_none_is_refused(name: str) -> None:
    message = f"short is True; it must be False for '{name}': only the stages that read blocks"
    with pytest.raises(ValueError, match=message):
        attempt(name, short=True)


# --- command line


def test_a_line_says_that_all_is_well_and_the_table_is_there_for_the_asking() -> None:
    result = check("full_recompute")
    line = "full_recompute: 16 of 16 cases, against the oracle"
    assert str(result) == line
    assert result._repr_html_() == f"<b>{line}</b>"
    assert len(str(result.table()).splitlines()) > 10
    assert "<pre>" not in result.table()._repr_html_()


def test_command_line_verifies_stages_the_block_manager_and_the_engine(capsys) -> None:
    assert main(["--short", "full_recompute", "paged_gather", "block_manager", "engine"]) == 0
    said = capsys.readouterr().out
    all_cases = f"{len(SEQUENCE_CASES)} of {len(SEQUENCE_CASES)} cases"
    assert f"full_recompute: {all_cases}, against the oracle" in said
    assert (
        f"paged_gather: {len(SHORT_CHECK)} of {len(SHORT_CHECK)} cases, against the oracle" in said
    )
    assert f"{len(STORIES)} of {len(STORIES)} cases, against plain lists" in said
    assert f"{len(SCENES)} of {len(SCENES)} cases, against each request alone" in said


def test_command_line_exits_with_1_for_a_stage_that_is_wrong(monkeypatch, capsys) -> None:
    wrong = replace(STAGES["paged_gather"], at=lambda q, *arguments: q.clone())
    monkeypatch.setitem(STAGES, "paged_gather", wrong)
    assert main(["--short", "paged_gather"]) == 1
    assert "not yet; 0 of" in capsys.readouterr().out


def test_command_line_help_says_what_each_stage_is(capsys) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["--help"])
    said = capsys.readouterr().out
    assert all(f"{stage.name:16} {stage.new} ({stage.where})" in said for stage in STAGES.values())


def test_command_line_names_the_stages_for_an_unknown_one() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pa_tutorial.checks", "kvcache"],
        capture_output=True,
        encoding="utf-8",
        timeout=100,
    )
    assert done.returncode == 2
    assert "it must be one of full_recompute, kv_cache" in done.stderr
