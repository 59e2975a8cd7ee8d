"""What a failing check says: the first place, the line, and the idea behind it."""

import numpy as np
import pytest
import torch
from numba import cuda

from pa_tutorial.attention import cached, full
from pa_tutorial.attention.cached import cached_attention
from pa_tutorial.checks import check
from pa_tutorial.checks.__main__ import INTERRUPTED, main
from pa_tutorial.checks.calls import AnswerError
from pa_tutorial.checks.comparing import compare
from pa_tutorial.checks.diagnosing import diagnose
from pa_tutorial.checks.ladder import STAGES
from pa_tutorial.checks.running import judge, stage_trial
from pa_tutorial.checks.showing import CaseResult, Result, rows, verdict
from simt import SimtError, launch


def diagnosis(actual: list, expected: list, bound: float = 0.0) -> str:
    sides = ({"out": np.array(side, float)} for side in (actual, expected))
    comparisons = compare(next(sides), {"ours": next(sides)}, {"out": bound})
    return diagnose(comparisons, ("thread", "place"))


@pytest.mark.parametrize(
    ("actual", "expected", "bound", "words"),
    [
        ([[0, 1, 2, 3, 6]], [[0, 1, 8, 9, 24]], 0.0, "thread 0, place 2 is 2 and should be 8"),
        ([[np.nan, 1]], [[0, 1]], 0.0, "place 0 is nan and should be 0"),
        ([[0.25512, 1]], [[0.25514, 1]], 1e-6, "place 0 is 0.25512 and should be 0.25514"),
        ([[123456789]], [[123456788]], 0.0, "is 123456789 and should be 123456788"),
    ],
)
def test_the_first_or_worst_place_is_named_with_digits_that_tell(
    actual: list, expected: list, bound: float, words: str
) -> None:
    assert words in diagnosis(actual, expected, bound)


def test_everywhere_is_said_of_rows_over_their_bound_and_not_of_whole_numbers() -> None:
    assert "every thread is wrong" in diagnosis([[1, 2], [1, 2]], [[1, 3], [1, 3]], 1e-6)
    assert "every" not in diagnosis([[1, 2], [1, 2]], [[1, 3], [1, 3]])


@pytest.mark.parametrize(
    ("passed", "error", "bound", "words"),
    [
        (True, 2e-4, 1e-3, "within 1e-03"),
        (False, 4.7e-3, 1e-3, "5 times the bound, 1e-03"),
        (False, 1.2, 1e-3, "1,000 times the bound, 1e-03"),
        (False, 3.0, 1e-12, "more than 1,000,000,000 times the bound, 1e-12"),
        (False, np.nan, 1e-3, "NaN or infinite"),
        (False, np.inf, 1e-3, "NaN or infinite"),
        (True, 0.0, 0.0, "equal"),
        (False, 0.1, 0.0, "not equal"),
        (False, None, 1e-3, "no result"),
    ],
)
def test_a_verdict_says_how_many_times_the_bound_the_error_is(
    passed: bool, error: float | None, bound: float, words: str
) -> None:
    assert verdict(CaseResult("case", "isolates", "meaning", passed, error, bound)) == words


def test_neighbours_that_isolate_the_same_share_a_row_with_the_loosest_bound() -> None:
    names = ("size_8", "size_16", "size_32", "one", "other_one", "alone")
    isolates, bounds = ("sizes",) * 3 + ("stories",) * 2 + ("alone",), (1e-4, 1e-3, 1e-5, 1, 1, 1)
    pairs = zip(names, isolates, bounds, strict=True)
    cases = tuple(CaseResult(name, what, "", True, 0.0, bound) for name, what, bound in pairs)
    assert rows(Result("title", ("us",), cases)) == [
        ("size_8 … 32 (3)", "sizes", "within 1e-03", True),
        ("one … other_one (2)", "stories", "within 1e+00", True),
        ("alone", "alone", "within 1e+00", True),
    ]


def test_if_every_case_fails_the_first_stands_for_all() -> None:
    cases = tuple(CaseResult(f"case_{n}", f"{n}", "", False, None, 0.0, f"{n}") for n in range(6))
    text = str(Result("title", ("us",), cases))
    assert text.endswith("FAIL case_0      0  no result\n  FAIL and 5 more\n\ncase_0: 0\n0")


@cuda.jit
def reads(out, cache, row, first):
    token = first // 1
    out[0] = cache[row, token]


@pytest.mark.parametrize(
    ("row", "first", "words"),
    [
        (0, 3, "token is 3; it must be 0 to 2.*off by one"),
        (2, 0, "row is 2; it must be 0 to 1.*Or two indices are swapped"),
    ],
)
def test_an_index_outside_says_where_it_comes_from_and_the_usual_cause(
    row: int, first: int, words: str
) -> None:
    with pytest.raises(SimtError, match=words) as raised:
        launch(reads, 1, 1, np.zeros(1), np.zeros((2, 3)), row, first)
    assert ("of reads:  token = first // 1" in str(raised.value)) == (row == 0)


def test_an_index_error_comes_with_its_variables_and_what_the_case_is_about() -> None:
    """Any other error only with its line."""

    def forgets_gqa(q, k, v, scale, slopes=None):
        for head in range(q.shape[1]):
            k[:, head]
        return cached_attention(q, k, v, scale, slopes)

    def stops(q, k, v, scale, slopes=None):
        head = 3
        raise ValueError("no such", head)

    trial = stage_trial(STAGES["kv_cache"], "decode/gqa")
    reports = [judge(trial, function)[0].report() for function in (forgets_gqa, stops)]
    assert "of forgets_gqa:  k[:, head]\n  where head = " in reports[0]
    assert "check this first: Query head h reads KV head" in reports[0]
    assert reports[1].endswith(' of stops:  raise ValueError("no such", head)')


def broken(*inputs: object, probe: object = None) -> torch.Tensor:
    raise AnswerError("trouble on demand")


def interrupted(*inputs: object, probe: object = None) -> torch.Tensor:
    raise KeyboardInterrupt


def test_a_stage_whose_reference_fails_is_no_traceback(monkeypatch) -> None:
    monkeypatch.setattr(full, "causal_attention", broken)
    result = check("kv_cache", raises=False)
    assert result.passed == 0
    assert "full_recompute, the reference for this case, gave no result: trouble" in str(result)


def test_ctrl_c_keeps_the_stages_that_were_finished(monkeypatch, capsys) -> None:
    monkeypatch.setattr(cached, "cached_attention", interrupted)
    assert main(["full_recompute", "kv_cache", "block_manager"]) == INTERRUPTED
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("full_recompute: ")
    assert second == "kv_cache: interrupted, no result"
