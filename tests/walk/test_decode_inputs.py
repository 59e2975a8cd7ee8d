"""The hostile paged inputs that problems give: NaN, shuffled blocks, pads, shared blocks."""

import pytest
import torch
from torch import Tensor

from pa_tutorial.paging.layouts import LAYOUTS, by_token
from pa_tutorial.walk.cases import DECODE_CASES
from pa_tutorial.walk.problem import DecodeProblem

EACH_LAYOUT = pytest.mark.parametrize("layout", LAYOUTS)
EACH_CASE = pytest.mark.parametrize("case", DECODE_CASES, ids=lambda case: case.name)


def problem(**changes: object) -> DecodeProblem:
    sizes = {"seq_lens": (13, 5, 8), "num_kv_heads": 2, "head_size": 16, "block_size": 4}
    return DecodeProblem("name", "isolates", "meaning", **(sizes | changes))


def owned_slots(case: DecodeProblem) -> Tensor:
    """[num_blocks, block_size], whether a token of a sequence lives there."""
    tables, num_blocks = case.block_tables()
    owned = torch.zeros(num_blocks, case.block_size, dtype=torch.bool)
    for table, seq_len in zip(tables, case.seq_lens, strict=True):
        for token in range(seq_len):
            owned[table[token // case.block_size], token % case.block_size] = True
    return owned


@EACH_CASE
@EACH_LAYOUT
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


@pytest.mark.parametrize("shared_blocks", [1, 2])
def test_shared_blocks_hold_the_same_tokens_under_the_same_numbers(shared_blocks) -> None:
    case = problem(seq_lens=(13, 9, 8), shared_blocks=shared_blocks)
    inputs, (tables, _) = case.inputs(), case.block_tables()
    assert len({tuple(table[:shared_blocks]) for table in tables}) == 1
    own = [block for table in tables for block in table[shared_blocks:]]
    assert len(set(own)) == len(own)
    end = 4 * shared_blocks
    for tokens in (inputs.keys, inputs.values):
        assert torch.equal(tokens[0][:end], tokens[1][:end])
        assert torch.equal(tokens[0][:end], tokens[2][:end])
        assert not torch.equal(tokens[0][end : end + 1], tokens[1][end : end + 1])


def test_an_unknown_layout_is_named_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"layout is 'vLLM'; it must be one of .*'vllm', 'plain'"):
        problem().paged("vLLM")
