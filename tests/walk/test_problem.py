"""Problems: reproducible, hostile, and refused when impossible; and the oracle is an oracle."""

import dataclasses

import numpy as np
import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from pa_tutorial.walk import oracle
from pa_tutorial.walk.cases import CASES, DECODE_CASES, SEQUENCE_CASES
from pa_tutorial.walk.problem import DTYPES, DecodeProblem, SequenceProblem
from pa_tutorial.walk.regimes import SCORE_REGIMES


def decode_problem(**changes: object) -> DecodeProblem:
    return DecodeProblem("name", "isolates", "meaning", **changes)


def sequence_problem(**changes: object) -> SequenceProblem:
    return SequenceProblem("name", "isolates", "meaning", **changes)


def as_heads_first(array: np.ndarray, num_heads: int) -> torch.Tensor:
    """[tokens, heads, head_size] -> [num_heads, tokens, head_size], KV heads repeated."""
    tensor = torch.from_numpy(array).transpose(0, 1)
    return tensor.repeat_interleave(num_heads // len(tensor), dim=0)


@pytest.mark.parametrize(("num_heads", "num_kv_heads"), [(4, 4), (6, 3), (4, 1)])
@pytest.mark.parametrize("slopes", [None, np.array([0.5, 0.25, 0.125, 0.1, 0.05, 0.01])])
def test_oracle_equals_pytorch_in_float64(num_heads, num_kv_heads, slopes) -> None:
    rng = np.random.default_rng(0)
    q = rng.standard_normal((7, num_heads, 16))
    k, v = rng.standard_normal((2, 7, num_kv_heads, 16))
    slopes = None if slopes is None else slopes[:num_heads]
    ours = oracle.attend(q, k, v, 0.25, slopes, first=0)["out"]

    i, j = torch.arange(7.0)[:, None], torch.arange(7.0)[None, :]
    bias = torch.where(j > i, -torch.inf, 0.0).double()
    if slopes is not None:
        bias = bias + torch.from_numpy(slopes)[:, None, None] * (j - i)
    theirs = scaled_dot_product_attention(
        *(as_heads_first(array, num_heads) for array in (q, k, v)), attn_mask=bias, scale=0.25
    )
    assert np.abs(ours - theirs.transpose(0, 1).numpy()).max() < 1e-14


@pytest.mark.parametrize("case", ["sequence/two_layers", "sequence/gqa", "sequence/trained_model"])
def test_model_oracle_equals_the_model_in_float64(case: str) -> None:
    problem = CASES[case]
    model, probe = problem.model().double(), {}

    def attention(q, k, v, scale, slopes):
        q, k, v = (as_heads_first(t.numpy(), q.shape[1]) for t in (q, k, v))
        out = scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale)
        return out.transpose(0, 1)

    model(problem.tokens(), attention=attention, probe=probe)
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
        "extreme": np.abs(np.abs(qk) - 300).max() < 15 and qk.min() < 0 < qk.max(),
        "equal": np.allclose(largest, [[1 / 300] * 4, [1 / 40] * 4]),
        "opposite": (qk == -problem.scale).all(),
        "drifting": rises_and_falls(expected["qk"][0])
        and rises_and_falls(expected["qk"][1, :, :40]),
    }
    assert holds[scores]


def test_extreme_scores_differ_in_sign_by_head_and_by_sequence() -> None:
    qk = decode_problem(scores="extreme", num_kv_heads=2).expected()["qk"][:, :, 0]
    assert np.sign(qk).tolist() == [[-1, 1, -1, 1], [1, -1, 1, -1]]


def test_values_are_multiplied_by_their_factor() -> None:
    small, large = (decode_problem(values_factor=factor).inputs() for factor in (1.0, 1000.0))
    assert torch.allclose(large.values[0], 1000 * small.values[0])
    assert torch.equal(large.keys[0], small.keys[0])


def test_sharp_sequences_have_a_weight_over_one_half() -> None:
    largest = sequence_problem(scores="sharp").expected()["logits"].max(axis=-1)
    assert np.median(largest) > 0.5


def test_extreme_sequences_have_queries_that_see_no_score_but_a_low_one() -> None:
    qk = sequence_problem(scores="extreme").expected()["qk"]
    first_query = qk[:, :, 0, 0]  # it sees itself alone
    assert first_query.min() < -200
    assert first_query.max() > 200


def test_a_problem_is_the_same_every_time_and_its_tensors_are_fresh() -> None:
    problem = decode_problem()
    first, second = problem.inputs(), problem.inputs()
    first.q.zero_()
    first.keys[0].zero_()
    assert not torch.equal(first.q, second.q)
    assert torch.equal(problem.inputs().keys[0], second.keys[0])
    assert torch.equal(sequence_problem().tokens(), sequence_problem().tokens())


def test_strided_q_lies_in_a_larger_tensor_of_nan() -> None:
    q = decode_problem(strided_q=True).inputs().q
    assert q.stride(0) > q.shape[1] * q.shape[2]
    assert q.stride()[1:] == (q.shape[2], 1)
    assert not q.isnan().any()
    assert q.as_strided((q.stride(0),), (1,)).isnan().any()


def test_problems_are_immutable() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        decode_problem().head_size = 32


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_heads": 6, "num_kv_heads": 4}, "num_kv_heads is 4.*divisor of num_heads.* 6"),
        ({"num_heads": 0}, "num_heads is 0.*at least 1"),
        ({"num_kv_heads": 0}, "num_kv_heads is 0"),
        ({"seq_lens": (4, 0)}, r"seq_lens is \(4, 0\).*1 or more"),
        ({"seq_lens": ()}, "seq_lens is .*at least one"),
        ({"head_size": 0}, "head_size is 0"),
        ({"head_size": 6}, "head_size is 6.*multiple of x.* 4"),
        ({"head_size": 36, "dtype": torch.float16}, "head_size is 36.*multiple of x.* 8"),
        ({"dtype": torch.int8}, "dtype is torch.int8.*one of"),
        ({"scores": "loud"}, "scores is loud.*flat"),
    ],
)
def test_impossible_decode_problems_are_refused(changes: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        decode_problem(**changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_heads": 4, "num_kv_heads": 3}, "num_kv_heads is 3"),
        ({"steps": (4, 0)}, "steps is"),
        ({"steps": ()}, "steps is"),
        ({"num_layers": 0}, "num_layers is 0"),
        ({"head_size": 33}, "head_size is 33.*one of"),
        ({"scores": "huge"}, "scores is huge.*extreme"),
        ({"trained": True, "steps": (1000,)}, "steps is .*at most"),
    ],
)
def test_impossible_sequence_problems_are_refused(changes: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        sequence_problem(**changes)


def test_cases_have_names_of_their_own_and_say_what_failing_means() -> None:
    assert len(CASES) == len(SEQUENCE_CASES) + len(DECODE_CASES)
    for case in CASES.values():
        assert case.isolates
        assert case.meaning.endswith(".")
