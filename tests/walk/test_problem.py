"""Problems: reproducible, hostile, and refused when impossible; and the oracle is an oracle."""

import numpy as np
import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from pa_tutorial.paging.layouts import DTYPES
from pa_tutorial.walk.cases import CASES, DECODE_CASES, SEQUENCE_CASES
from pa_tutorial.walk.problem import DecodeProblem, SequenceProblem
from pa_tutorial.walk.regimes import SCORE_REGIMES


def decode_problem(**changes: object) -> DecodeProblem:
    return DecodeProblem("name", "isolates", "meaning", **changes)


def sequence_problem(**changes: object) -> SequenceProblem:
    return SequenceProblem("name", "isolates", "meaning", **changes)


@pytest.mark.parametrize("case", ["two_layers", "gqa_alibi_chunks", "trained_model"])
def test_the_oracle_is_the_model_with_pytorchs_attention_in_float64(case: str) -> None:
    problem, probe = CASES[f"sequence/{case}"], {}

    def attention(q, k, v, scale, slopes):
        token = torch.arange(len(q))
        distance = token - token[:, None]
        bias = torch.where(distance > 0, -torch.inf, 0.0).double()
        bias = bias if slopes is None else bias + slopes.double()[:, None, None] * distance
        k, v = (t.repeat_interleave(q.shape[1] // t.shape[1], dim=1) for t in (k, v))
        heads_first = (tensor.transpose(0, 1) for tensor in (q, k, v))
        out = scaled_dot_product_attention(*heads_first, attn_mask=bias, scale=scale)
        return out.transpose(0, 1)

    problem.model().double()(problem.tokens(), attention=attention, probe=probe)
    theirs = torch.stack(probe["out"]).numpy()
    assert np.abs(problem.expected()["out"] - theirs).max() < 1e-12


def rises_and_falls(qk: np.ndarray) -> bool:
    """[num_heads, seq_len]: even heads rise from -300 to 300 in a line, odd ones fall."""
    line = np.linspace(-300, 300, qk.shape[1])
    signs = np.array([1, -1, 1, -1])[:, None]
    return np.abs(qk - signs * line).max() < 15


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("scores", SCORE_REGIMES)
def test_scores_are_in_the_regime_that_they_name(scores: str, dtype: torch.dtype) -> None:
    problem = decode_problem(scores=scores, dtype=dtype, seq_lens=(300, 40), num_kv_heads=2)
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
    largest = sequence_problem(scores="sharp").expected()["logits"].max(axis=-1)
    assert np.median(largest) > 0.5
    first_query = sequence_problem(scores="extreme").expected()["qk"][:, :, 0, 0]
    assert first_query.min() < -200, "it sees itself alone"
    assert first_query.max() > 200


def test_a_problem_is_the_same_every_time_and_its_tensors_are_fresh() -> None:
    problem = decode_problem()
    first, second = problem.inputs(), problem.inputs()
    first.q.zero_()
    first.keys[0].zero_()
    assert not torch.equal(first.q, second.q)
    assert torch.equal(problem.inputs().keys[0], second.keys[0])
    assert torch.equal(sequence_problem().tokens(), sequence_problem().tokens())


@pytest.mark.parametrize(
    ("make", "changes", "message"),
    [
        (decode_problem, {"num_heads": 6, "num_kv_heads": 4}, "num_kv_heads is 4.*divisor .* 6"),
        (decode_problem, {"seq_lens": (4, 0)}, r"seq_lens is \(4, 0\).*1 or more"),
        (decode_problem, {"head_size": 36, "dtype": torch.float16}, "head_size is 36.* of x.* 8"),
        (decode_problem, {"dtype": torch.int8}, "dtype is torch.int8.*one of"),
        (decode_problem, {"scores": "loud"}, "scores is loud.*flat"),
        (decode_problem, {"block_size": 0}, "block_size is 0; it must be at least 1"),
        (decode_problem, {"shared_blocks": 2}, "shared_blocks is 2; it must be 0 to 1"),
        (sequence_problem, {"num_heads": 4, "num_kv_heads": 3}, "num_kv_heads is 3"),
        (sequence_problem, {"steps": ()}, "steps is"),
        (sequence_problem, {"num_layers": 0}, "num_layers is 0"),
        (sequence_problem, {"head_size": 33}, "head_size is 33.*one of"),
        (sequence_problem, {"scores": "huge"}, "scores is huge.*extreme"),
        (sequence_problem, {"trained": True, "steps": (1000,)}, "steps is .*at most"),
    ],
)
def test_impossible_problems_are_refused(make, changes: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(**changes)


def test_cases_have_names_of_their_own_and_say_what_failing_means() -> None:
    assert len(CASES) == len(SEQUENCE_CASES) + len(DECODE_CASES)
    for case in CASES.values():
        assert case.isolates
        assert case.meaning.endswith(".")
