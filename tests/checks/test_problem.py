"""Problems: reproducible, hostile, and refused when impossible.

Hostile means NaN in every slot that no token owns, shuffled blocks, pads, and shared blocks.
"""

import numpy as np
import pytest
import torch
from torch import Tensor

from pa_tutorial.checks.cases import DECODE_CASES
from pa_tutorial.checks.problem import DecodeProblem, SequenceProblem
from pa_tutorial.paging.layouts import LAYOUTS, by_token

FLOAT8 = {"cache_dtype": torch.float8_e4m3fn}
EACH_CASE = pytest.mark.parametrize("case", DECODE_CASES, ids=lambda case: case.name)


def decode_problem(**changes: object) -> DecodeProblem:
    return DecodeProblem("name", **changes)


def sequence_problem(**changes: object) -> SequenceProblem:
    return SequenceProblem("name", **changes)


def test_scores_of_sequences_are_sharp_or_extreme() -> None:
    largest = sequence_problem(scores="sharp").expected()["logits"].max(axis=-1)
    assert np.median(largest) > 0.5
    first_query = sequence_problem(scores="extreme").expected()["qk"][:, :, 0, 0]
    assert first_query.min() < -200, "it sees itself alone"
    assert first_query.max() > 200


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
    tables, num_blocks = case.block_tables()
    for table in tables:
        assert len(table) == 1 or table != list(range(table[0], table[0] + len(table)))
    width = max(map(len, tables)) + case.pad_columns
    padded = case.paged("plain").block_tables.tolist()
    assert padded == [table + [0] * (width - len(table)) for table in tables]
    used = {number for table in tables for number in table}
    assert len(used) < num_blocks, "a part of the pool belongs to nobody"
    assert (0 in used) == case.block_zero


@pytest.mark.parametrize(
    ("make", "changes", "message"),
    [
        (decode_problem, {"seq_lens": (4, 0)}, r"seq_lens is \(4, 0\)"),
        (decode_problem, {"head_size": 40} | FLOAT8, "head_size is 40.* 16 for torch.float8_e4"),
        (decode_problem, {"cache_dtype": "fp8"}, "cache_dtype is fp8"),
        (decode_problem, FLOAT8 | {"v_scale": (0.0,)}, "v_scale is .0.0,."),
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
    with pytest.raises(ValueError, match=r"layout is 'vLLM'.*'vllm', 'plain'"):
        decode_problem().paged("vLLM")
