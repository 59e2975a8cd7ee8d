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
from pa_tutorial.checks.diagnosing import _position_pattern
from pa_tutorial.checks.ladder import STAGES
from pa_tutorial.checks.running import judge, run_trials, stage_trial
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


def raise_unreadable(q: torch.Tensor) -> None:
    raise Unreadable


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (lambda q: None, "returned None"),
        (lambda q: q * float("nan"), "the output holds NaN"),
        (torch.zeros_like, "all zero"),
        (lambda q: q[:-1], "must return the shape, dtype and device of q"),
        (lambda q: q.double(), "must return the shape, dtype and device of q"),
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


def test_our_own_stage_is_not_run_in_the_place_of_another(monkeypatch) -> None:
    with pytest.raises(TypeError, match="function is None"):
        check("kv_cache", None, raises=False)
    with pytest.raises(ValueError, match=r"'kvcache'.*kv_cache.*prefix_cache or engine"):
        check("kvcache", raises=False)
    with pytest.raises(ValueError, match="nothing has no cases"):
        run_trials("nothing", [], None)
    with pytest.raises(KeyError, match="a_new_case"):
        bounds_of("a_new_case")
    monkeypatch.setitem(STAGES, "triton", SimpleNamespace(why_absent=lambda: "no wheel"))
    with pytest.raises(ImportError, match="triton cannot run here: no wheel"):
        check("triton", raises=False)


@pytest.mark.parametrize("takes", ["k_scale", ["k_scale"], ["kscale", "v_scale"], [["probe"]], 7])
def test_what_no_function_takes_is_refused(takes: object) -> None:
    """Unknown, it would be ignored, and the check would pass without it."""
    with pytest.raises(ValueError, match=r"takes is .*probe, "):
        check("paged_gather", paged_gather, takes=takes, raises=False)


@pytest.mark.parametrize("name", ["kv_cache", "block_manager"])
def test_short_check_of_what_has_none_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"short is True; it must be False for '{name}'"):
        check(name, short=True, raises=False)


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


def test_where_the_wrong_positions_are_says_what_is_wrong() -> None:
    after, decode = "tokens that come after", "decode is wrong"
    said = {"xxxx.": after, "...xx": decode, "xx...": "the prompt is wrong"}
    for wrong, sentence in (said | {"..x.x": "None", "xxxxx": "None"}).items():
        assert sentence in str(_position_pattern(np.array([x == "x" for x in wrong]), 3))


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


def test_command_line_verifies_stages_and_others(capsys) -> None:
    assert main(["--short", "paged_gather", "block_manager"]) == 0
    said = capsys.readouterr().out
    for number, reference in ((len(SHORT_CHECK), "the oracle"), (len(STORIES), "plain lists")):
        assert f"{number} of {number} cases, against {reference}" in said


def test_command_line_exits_with_1_for_a_stage_that_is_wrong(monkeypatch, capsys) -> None:
    wrong = TorchBackend(lambda step, probe=None: step.q.clone(), "vllm")
    monkeypatch.setattr(ladder, "backend_named", lambda name: wrong)
    assert main(["--short", "paged_gather"]) == 1
    assert "not yet; 0 of" in capsys.readouterr().out


def test_command_line_names_the_stages(capsys) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["--help"])
    said = capsys.readouterr().out
    assert all(f"{stage.name:16} {stage.new} ({stage.where})" in said for stage in STAGES.values())
    with pytest.raises(SystemExit, match="2"):
        main(["kvcache"])
    assert "it must be one of full_recompute, kv_cache" in capsys.readouterr().err
