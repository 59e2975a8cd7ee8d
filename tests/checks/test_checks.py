"""The shared checks: they can fail, they say why, and nothing slips through."""

import sys
from decimal import Decimal
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from pa_tutorial.attention.cached import cached_attention
from pa_tutorial.attention.full import unmasked_attention
from pa_tutorial.attention.paged import TorchBackend, paged_gather
from pa_tutorial.checks import CheckFailure, check, ladder
from pa_tutorial.checks.__main__ import main
from pa_tutorial.checks.block_manager_check import STORIES
from pa_tutorial.checks.cases import CASES, SEQUENCE_CASES, SHORT_CHECK
from pa_tutorial.checks.comparing import bounds_of, compare, load_bounds, relative_errors
from pa_tutorial.checks.diagnosing import diagnose
from pa_tutorial.checks.ladder import STAGES
from pa_tutorial.checks.running import judge, run_trials, stage_trial
from pa_tutorial.checks.showing import CaseResult, Result, rows, verdict
from tests.wrong_examples import load_examples


def test_check_raises_an_assertion_error_that_holds_the_result() -> None:
    with pytest.raises(AssertionError, match="tokens that come after") as raised:
        check("full_recompute", lambda q, k, v, scale, slopes: unmasked_attention(q, k, v, scale))
    assert isinstance(raised.value, CheckFailure)
    result = raised.value.result
    assert (result.passed, result.total, result.ok) == (1, len(SEQUENCE_CASES), False)
    assert result.first_failure.name == "sequence/one_layer"


class Unreadable(Exception):
    def __str__(self) -> str:
        raise RuntimeError


def raise_unreadable(*_: object) -> None:
    raise Unreadable


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (lambda q: None, "returned None"),
        (lambda q: q * float("nan"), "the output holds NaN"),
        (torch.zeros_like, "all zero"),
        (lambda q: q[:-1], "must return the shape, dtype and device of q"),
        (lambda q: q.tolist(), "returned a list"),
        (lambda q: 1 / 0, "it raised ZeroDivisionError"),
        (lambda q: sys.exit("bye"), "it raised SystemExit: bye"),
        (raise_unreadable, "it raised Unreadable"),
    ],
)
def test_nothing_else_passes_and_the_reason_is_given(answer, message) -> None:
    result = check("full_recompute", lambda q, *arguments: answer(q), raises=False)
    assert result.passed == 0
    assert message in str(result)
    assert message in result._repr_html_()


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        (["kv_cache", None], {}, "function is None"),
        (["kvcache"], {}, r"'kvcache'.*kv_cache.*prefix_cache or engine"),
        (["block_manager"], {"short": True}, "short is True"),
        (["paged_gather", paged_gather], {"takes": "k_scale"}, "takes is .*probe, "),
        (["paged_gather", paged_gather], {"takes": ["kscale", "v_scale"]}, "takes is .*probe, "),
    ],
)
def test_what_cannot_be_checked_is_refused(arguments: list, options: dict, message: str) -> None:
    """Else our own stage would be run in its place, or what no function takes be ignored."""
    with pytest.raises((TypeError, ValueError), match=message):
        check(*arguments, **options, raises=False)


def test_without_cases_a_bound_or_a_package_nothing_passes(monkeypatch) -> None:
    with pytest.raises(ValueError, match="nothing has no cases"):
        run_trials("nothing", [], None)
    with pytest.raises(KeyError, match=r"no bound .* a_new_case"):
        bounds_of("a_new_case")
    monkeypatch.setitem(STAGES, "triton", SimpleNamespace(why_absent=lambda: "no wheel"))
    with pytest.raises(ImportError, match="triton cannot run here: no wheel"):
        check("triton", raises=False)


def test_what_a_function_does_to_torch_is_undone() -> None:
    def disturbing(q, *arguments):
        torch.set_default_dtype(torch.float16)
        torch.set_default_device("meta")
        torch.manual_seed(0)
        return torch.zeros_like(q)

    state = torch.get_rng_state()
    judge(stage_trial(STAGES["full_recompute"], "sequence/one_token"), disturbing)
    assert torch.get_default_dtype() == torch.float32
    assert torch.get_default_device() == torch.device("cpu")
    assert torch.equal(torch.get_rng_state(), state)


def test_a_wrong_intermediate_fails_even_if_the_output_is_right() -> None:
    def stretched_scores(q, k, v, scale, slopes=None, probe=None):
        out = cached_attention(q, k, v, scale, slopes, probe)
        probe["qk"] = 1.1 * probe["qk"]  # after the softmax has read it
        return out

    trial = stage_trial(STAGES["kv_cache"], "decode/gqa", takes=["probe"])
    case, _ = judge(trial, stretched_scores)
    assert not case.passed
    assert "first wrong: qk" in case.diagnosis
    assert "out itself is within its bound" in case.diagnosis


def test_relative_error_is_a_norm_over_the_row() -> None:
    expected = np.array([[3.0, 4.0], [0.0, 0.0], [1.0, -np.inf]])
    assert relative_errors(expected, expected).tolist() == [0.0, 0.0, 0.0]
    assert relative_errors(expected + np.array([0, 0.5]), expected).tolist() == [0.1, 0.5, 0.0]
    for size in (2.0**-40, 2.0**40):  # however small or large the numbers are
        wrong = np.array([[3.0, 4.5]]) * size
        assert relative_errors(wrong, expected[:1] * size).tolist() == [0.1]


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("right", [1.0, -np.inf])
def test_nan_and_misplaced_infinity_are_an_infinite_error(wrong, right) -> None:
    actual, expected = np.array([1.0, 1.0 if wrong == right else wrong]), np.array([1.0, right])
    (comparison,) = compare({"out": actual}, {"r": {"out": expected}}, {"out": 1e9})
    assert relative_errors(actual, expected) == np.inf
    assert not comparison.passed


def test_bounds_keep_their_rule_and_record_both_figures() -> None:
    names = {example.name for example in load_examples()}
    assert set(load_bounds()) == set(CASES)
    for case_id, quantities in load_bounds().items():
        for figures in quantities.values():
            assert 0 < figures["bound"] <= 10 * figures["worst_correct"], case_id
            assert figures["stage"] in STAGES
        out = quantities["out"]
        assert out["wrong_example"] in names
        bound, smallest_wrong = (Decimal(str(out[name])) for name in ("bound", "smallest_wrong"))
        assert 10 * bound <= smallest_wrong, case_id  # as written: 0.41 / 10 is less than 0.041


def test_wrong_heads_are_named() -> None:
    def of_the_first_kv_head(q, k, v, *others):
        return cached_attention(q, k[:, :1].expand_as(k), v, *others)

    case, _ = judge(stage_trial(STAGES["kv_cache"], "decode/gqa"), of_the_first_kv_head)
    assert "only heads [2, 3, 4, 5] are wrong: look at which KV head" in case.diagnosis


KERNELS = [name for name in STAGES if name.startswith("cuda_") or name in ("cpu", "triton")]


def test_no_kept_mistake_in_a_kernel_passes_the_short_check() -> None:
    fails = {
        (example.name, stage): {case for other, case in example.fails if other == stage}
        for example in load_examples()
        for stage, _ in example.fails
        if stage in KERNELS
    }
    assert {stage for _, stage in fails} == set(KERNELS)
    assert [pair for pair, cases in fails.items() if not cases & set(SHORT_CHECK)] == []


def test_command_line_exits_with_0_if_all_is_right_1_if_not_and_2_for_no_stage(
    monkeypatch, capsys
) -> None:
    assert main(["--short", "paged_gather", "block_manager"]) == 0
    said = capsys.readouterr().out
    for number, reference in ((len(SHORT_CHECK), "the oracle"), (len(STORIES), "plain lists")):
        assert f"{number} of {number} cases, against {reference}" in said
    wrong = TorchBackend(lambda step, probe=None: step.q.clone(), "vllm")
    monkeypatch.setattr(ladder, "backend_named", lambda name: wrong)
    assert main(["--short", "paged_gather"]) == 1
    assert "not yet; 0 of" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="2"):
        main(["kvcache"])
    assert "it must be one of full_recompute, kv_cache" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("actual", "expected", "bound", "words"),
    [
        ([[0, 1, 2, 3, 6]], [[0, 1, 8, 9, 24]], 0.0, "thread 0, place 2 is 2 and should be 8"),
        ([[np.nan, 1]], [[0, 1]], 0.0, "place 0 is nan and should be 0"),
        ([[0.25512, 1]], [[0.25514, 1]], 1e-6, "place 0 is 0.25512 and should be 0.25514"),
    ],
)
def test_the_first_or_worst_place_is_named_with_digits_that_tell(
    actual: list, expected: list, bound: float, words: str
) -> None:
    sides = ({"out": np.array(side, float)} for side in (actual, expected))
    comparisons = compare(next(sides), {"ours": next(sides)}, {"out": bound})
    assert words in diagnose(comparisons, ("thread", "place"))


@pytest.mark.parametrize(
    ("error", "bound", "words"),
    [
        (4.7e-3, 1e-3, "5 times the bound, 1e-03"),
        (3.0, 1e-12, "more than 1,000,000,000 times the bound, 1e-12"),
        (np.nan, 1e-3, "NaN or infinite"),
        (0.1, 0.0, "not equal"),
        (None, 1e-3, "no result"),
    ],
)
def test_a_verdict_says_how_many_times_the_bound_the_error_is(error, bound, words) -> None:
    assert verdict(CaseResult("case", "isolates", "meaning", False, error, bound)) == words


def test_neighbours_that_isolate_the_same_share_a_row_with_the_loosest_bound() -> None:
    bounds = {"size_8": 1e-4, "size_16": 1e-3, "size_32": 1e-5}
    cases = [CaseResult(name, "sizes", "", True, 0.0, bound) for name, bound in bounds.items()]
    cases.append(CaseResult("alone", "another thing", "", True, 0.0, 1e-6))
    assert rows(Result("title", ("us",), tuple(cases))) == [
        ("size_8 … 32 (3)", "sizes", "within 1e-03", True),
        ("alone", "another thing", "within 1e-06", True),
    ]


def test_an_index_error_comes_with_its_variables_and_any_other_only_with_its_line() -> None:
    def forgets_gqa(q, k, v, scale, slopes=None):
        for head in range(q.shape[1]):
            k[:, head]

    def stops(q, *others):
        head = 3
        raise ValueError("no such", head)

    trial = stage_trial(STAGES["kv_cache"], "decode/gqa")
    reports = [judge(trial, function)[0].report() for function in (forgets_gqa, stops)]
    assert "of forgets_gqa:  k[:, head]\n  where head = " in reports[0]
    assert "check this first: Query head h reads KV head" in reports[0]
    assert reports[1].endswith(' of stops:  raise ValueError("no such", head)')
