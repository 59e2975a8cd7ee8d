"""Scores are in the regime that they name: a kernel that ignores K must not pass in all of them."""

import numpy as np
import pytest
import torch

from pa_tutorial.checks.problem import DecodeProblem, SequenceProblem
from pa_tutorial.checks.regimes import SCORE_REGIMES
from pa_tutorial.paging.layouts import DTYPES


def rises_and_falls(qk: np.ndarray) -> bool:
    """[num_heads, seq_len]: even heads rise from -300 to 300 in a line, odd ones fall."""
    line = np.linspace(-300, 300, qk.shape[1])
    signs = np.array([1, -1, 1, -1])[:, None]
    return np.abs(qk - signs * line).max() < 15


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("scores", SCORE_REGIMES)
def test_scores_are_in_the_regime_that_they_name(scores: str, dtype: torch.dtype) -> None:
    problem = DecodeProblem("", scores=scores, dtype=dtype, seq_lens=(300, 40), num_kv_heads=2)
    expected = problem.expected()
    qk = expected["qk"][np.isfinite(expected["qk"])]
    largest = expected["logits"].max(axis=-1)
    holds = {
        "flat": qk.std() < 0.1,
        "ordinary": abs(qk.mean()) < 0.2 and 0.8 < qk.std() < 1.2,
        "sharp": largest.min() > 0.5,
        "deep_negative": qk.max() < -280,
        "huge": np.abs(qk - 10_000).max() < 100,
        "extreme": np.abs(np.abs(qk) - 300).max() < 15
        and np.sign(expected["qk"][:, :, 0]).tolist() == [[-1, 1, -1, 1], [1, -1, 1, -1]],
        "equal": np.allclose(largest, [[1 / 300] * 4, [1 / 40] * 4]),
        "opposite": (qk == -problem.scale).all(),
        "drifting": rises_and_falls(expected["qk"][0])
        and rises_and_falls(expected["qk"][1, :, :40]),
    }
    assert holds[scores]


def test_scores_of_sequences_are_sharp_or_extreme() -> None:
    largest = SequenceProblem("", scores="sharp").expected()["logits"].max(axis=-1)
    assert np.median(largest) > 0.5
    first_query = SequenceProblem("", scores="extreme").expected()["qk"][:, :, 0, 0]
    assert first_query.min() < -200, "it sees itself alone"
    assert first_query.max() > 200
