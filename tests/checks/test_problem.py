"""Problems: reproducible, hostile, and refused when impossible.

Hostile means NaN in every slot that no token owns, shuffled blocks, pads, and shared blocks.
"""

import numpy as np
import pytest
import torch
from torch import Tensor

from pa_tutorial.checks.cases import CASES, DECODE_CASES
from pa_tutorial.checks.problem import DecodeProblem, SequenceProblem
from pa_tutorial.checks.regimes import SCORE_REGIMES
from pa_tutorial.paging.layouts import DTYPES, LAYOUTS, by_token

FLOAT8 = {"cache_dtype": torch.float8_e4m3fn}
EACH_CASE = pytest.mark.parametrize("case", DECODE_CASES, ids=lambda case: case.name)


def decode_problem(**changes: object) -> DecodeProblem:
    return DecodeProblem("name", **changes)


def sequence_problem(**changes: object) -> SequenceProblem:
    return SequenceProblem("name", **changes)


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


def owned_slots(case: DecodeProblem) -> Tensor:
    """[num_blocks, block_size], whether a token of a sequence lives there."""
    tables, num_blocks = case.block_tables()
    owned = torch.zeros(num_blocks, case.block_size, dtype=torch.bool)
    for table, seq_len in zip(tables, case.seq_lens, strict=True):
        for token in range(seq_len):
            owned[table[token // case.block_size], token % case.block_size] = True
    return owned


@EACH_CASE
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_slot_that_no_token_owns_is_nan_and_no_other(case, layout) -> None:
    inputs = case.paged(layout)
    owned = owned_slots(case)
    for tokens in by_token(inputs.k_cache, inputs.v_cache):
        is_nan = tokens.isnan().flatten(2)
        assert is_nan[~owned].all() or case.stale
        assert not is_nan[owned].any()
        assert not (case.stale and is_nan.any())


@EACH_CASE
def test_tables_are_shuffled_and_padded_with_block_zero(case) -> None:
    inputs, (tables, num_blocks) = case.paged("plain"), case.block_tables()
    for table in tables:
        assert len(set(table)) == len(table)
        assert len(table) == 1 or table != list(range(table[0], table[0] + len(table)))
    width = max(map(len, tables)) + case.pad_columns
    assert case.pad_columns >= 1 or case.name == "one_full_block"
    assert (inputs.block_tables.dtype, inputs.seq_lens.dtype) == (torch.int32, torch.int32)
    assert inputs.block_tables.tolist() == [table + [0] * (width - len(table)) for table in tables]
    # Block 0 has an owner in one case only, where it looks like padding.
    assert [0 in table for table in tables] == [case.block_zero] + [False] * (len(tables) - 1)
    assert case.block_zero == (case.name == "block_zero_in_use")
    assert tables[0][-1] == 0 or not case.block_zero
    # A part of the pool belongs to nobody.
    used = {number for table in tables for number in table}
    assert num_blocks - len(used) >= (2 if case.tables else num_blocks // 4)


def test_shared_blocks_hold_the_same_tokens_under_the_same_numbers() -> None:
    case = CASES["decode/shared_blocks"]
    inputs, (tables, _) = case.inputs(), case.block_tables()
    assert len({tuple(table[:2]) for table in tables}) == 1
    own = [block for table in tables for block in table[2:]]
    assert len(set(own)) == len(own)
    for first, second, _ in (inputs.keys, inputs.values):
        assert torch.equal(first[:32], second[:32])
        assert not torch.equal(first[32], second[32])


def test_a_strided_q_lies_among_nan_and_any_other_is_dense() -> None:
    dense, strided = (decode_problem(strided_q=strided).inputs().q for strided in (False, True))
    assert torch.equal(dense, strided)
    assert dense.is_contiguous()
    assert strided.stride() == (6 * 64, 64, 1)
    assert torch.as_strided(strided, (2, 6, 64), strided.stride())[:, 4:].isnan().all()


def test_a_problem_draws_what_its_fields_say() -> None:
    usual = decode_problem().inputs()
    for values in decode_problem(values_factor=4.0).inputs().values:
        assert 3 < values.std() < 5
    torch.testing.assert_close(decode_problem(scale_factor=3.0).inputs().scale, 3 * usual.scale)
    rounded = decode_problem(rounded_to=0.125).inputs()
    for tensor in (rounded.q, *rounded.keys, *rounded.values):
        assert torch.equal(8 * tensor, (8 * tensor).round())
    assert not torch.equal(8 * usual.q, (8 * usual.q).round())
    slopes = decode_problem(alibi=True).inputs().alibi_slopes
    assert usual.alibi_slopes is None
    assert (slopes[0], len(slopes.unique())) == (torch.tensor(0.7), 4)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_gaps_are_a_head_of_nan_behind_each_block(layout: str) -> None:
    dense, with_gaps = (decode_problem(gaps=gaps).paged(layout) for gaps in (False, True))
    for name in ("k_cache", "v_cache"):
        cache, gapped = getattr(dense, name), getattr(with_gaps, name)
        assert torch.equal(cache.nan_to_num(), gapped.nan_to_num())
        heads, numbers = 5, 2 * 16 * 64  # K and V of a head, in 5 heads
        assert (cache.is_contiguous(), gapped.stride()[:2]) == (True, (heads * numbers, numbers))


@pytest.mark.parametrize(
    ("make", "changes", "message"),
    [
        (decode_problem, {"seq_lens": (4, 0)}, r"seq_lens is \(4, 0\)"),
        (decode_problem, {"head_size": 40} | FLOAT8, "head_size is 40.* 16 for torch.float8_e4"),
        (decode_problem, {"cache_dtype": "fp8"}, "cache_dtype is fp8"),
        (decode_problem, FLOAT8 | {"k_scale": (1.0,) * 3}, "k_scale is .1.0, 1.0, 1.0."),
        (decode_problem, FLOAT8 | {"v_scale": (0.0,)}, "v_scale is .0.0,."),
        (decode_problem, FLOAT8 | {"v_scale": 0.5}, "v_scale is 0.5"),
        (decode_problem, {"k_scale": (0.5,)}, "k_scale is"),
        (decode_problem, {"scores": "loud"}, "scores is loud"),
        (decode_problem, {"shared_blocks": 2}, "shared_blocks is 2; it must be 0 to 1"),
        (sequence_problem, {"steps": ()}, "steps is"),
        (sequence_problem, {"scores": "huge"}, "scores is huge"),
        (sequence_problem, {"trained": True, "steps": (1000,)}, "steps is .*at most"),
    ],
)
def test_impossible_problems_are_refused(make, changes: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(**changes)


def test_an_unknown_layout_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"layout is 'vLLM'.*'vllm', 'plain'"):
        decode_problem().paged("vLLM")
