"""The Triton kernels in the interpreter: sizes and numbers that the ladder does not ask for."""

import pytest
import torch
from torch import Tensor
from triton_steps import draw, error, expected, is_right, taken_out
from triton_trials import TRIALS

from pa_tutorial.kernels.triton_launch import (
    PARTITIONS_AT_ONCE,
    paged_attention_triton,
    paged_attention_triton_beside,
    prepare_triton,
)

pytestmark = pytest.mark.triton
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
by_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)


@by_dtype
@pytest.mark.parametrize("head_size", [1, 5, 33, 80, 120, 129, 256])
def test_any_head_size(head_size: int, dtype: torch.dtype) -> None:
    arguments = draw(head_size=head_size, dtype=dtype)
    assert is_right(paged_attention_triton(**arguments), arguments)


@pytest.mark.parametrize("tile_size", [16, 32, 64, 256])
@pytest.mark.parametrize("block_size", [1, 5, 8, 16, 24, 32])
def test_any_block_size_in_any_tile(block_size: int, tile_size: int) -> None:
    """A tile is part of a block, or has several, or ends within one."""
    arguments = draw(seq_lens=(70, 24), block_size=block_size)
    assert is_right(paged_attention_triton(**arguments, tile_size=tile_size), arguments)


@by_dtype
@pytest.mark.parametrize("group", [1, 2, 3, 5, 8, 20])
def test_any_number_of_query_heads_to_a_kv_head(group: int, dtype: torch.dtype) -> None:
    arguments = draw(num_heads=2 * group, alibi=True, dtype=dtype)
    assert is_right(paged_attention_triton(**arguments), arguments)


@pytest.mark.parametrize("partition_size", [1, 7, 16, 1000, 2**30])
def test_any_partition_size(partition_size: int) -> None:
    """A partition may begin and end within a block, and within a tile."""
    arguments = draw(seq_lens=(37, 1, 8), num_heads=2, num_kv_heads=1, alibi=True)
    out = paged_attention_triton(**arguments, partition_size=partition_size, tile_size=16)
    assert is_right(out, arguments)


@pytest.mark.parametrize("beside", [False, True])
@pytest.mark.parametrize("num_partitions", [1, 2, 15, 16, 17, 31, 32, 33, 50])
def test_any_number_of_partitions_is_merged(num_partitions: int, beside: bool) -> None:
    """The second kernel takes 16 at once. The scores rise, so the last ones have the weight."""
    assert PARTITIONS_AT_ONCE == 16
    arguments = draw(seq_lens=(4 * num_partitions - 1,), num_heads=1, num_kv_heads=1, alibi=True)
    arguments["alibi_slopes"].fill_(0.5)
    step = taken_out(arguments) if beside else arguments
    prepared = prepare_triton(**step, partition_size=4, tile_size=16)
    assert prepared.max_logits.shape[2] == num_partitions
    assert is_right(prepared.run(), arguments)


@pytest.mark.parametrize("partition_size", [4, 512])
def test_scores_that_fall(partition_size: int) -> None:
    """What comes later has the smaller maximum. What was summed must not be rescaled to it: that
    would overflow, from tile to tile and from partition to partition."""
    arguments = draw(seq_lens=(133,), num_heads=1, num_kv_heads=1, alibi=True)
    arguments["alibi_slopes"].fill_(-3.0)
    sizes = {"partition_size": partition_size, "tile_size": 16}
    assert is_right(paged_attention_triton(**arguments, **sizes), arguments)


@by_dtype
@pytest.mark.parametrize("head_size", [16, 40])
def test_gaps_between_sequences_blocks_and_heads(head_size: int, dtype: torch.dtype) -> None:
    arguments = draw(head_size=head_size, gaps=True, dtype=dtype, alibi=True)
    assert not arguments["k_cache"].is_contiguous()
    assert is_right(paged_attention_triton(**arguments, partition_size=8), arguments)


def test_tables_may_be_the_left_part_of_wider_ones() -> None:
    arguments = draw(seq_lens=(20, 9, 17))
    wide = torch.full((3, 11), 10_000, dtype=torch.int32)
    wide[:, :4] = arguments["block_tables"]
    arguments["block_tables"] = wide[:, :4]
    assert is_right(paged_attention_triton(**arguments), arguments)


def test_all_blocks_of_a_head_may_lie_together() -> None:
    """As a cache is, of which each device has some of the heads."""
    arguments = draw()
    for name in ("k_cache", "v_cache"):
        arguments[name] = arguments[name].transpose(0, 1).contiguous().transpose(0, 1)
    assert is_right(paged_attention_triton(**arguments), arguments)


@by_dtype
@pytest.mark.parametrize("number", [torch.nan, torch.inf, -torch.inf], ids=str)
def test_what_lies_in_slots_without_a_token_does_not_matter(
    number: float, dtype: torch.dtype
) -> None:
    """In the last block of a sequence, in block 0, in free blocks."""
    arguments = draw(head_size=24, dtype=dtype)
    out = paged_attention_triton(**arguments)
    for name in ("k_cache", "v_cache"):
        arguments[name][arguments[name].isnan()] = number
    assert torch.equal(paged_attention_triton(**arguments), out)


def test_unused_places_of_a_table_may_name_blocks_that_do_not_exist() -> None:
    arguments = draw(seq_lens=(20, 9))
    tables = torch.full((2, 300), 2**31 - 1, dtype=torch.int32)
    tables[1] = -7
    for row, used in enumerate((3, 2)):
        tables[row, :used] = arguments["block_tables"][row, :used]
    arguments["block_tables"] = tables
    assert is_right(paged_attention_triton(**arguments, tile_size=64), arguments)


@pytest.mark.parametrize("size", [1e4, -1e4, -1e6])
def test_huge_and_very_negative_scores(size: float) -> None:
    """All scores are near `size`, some steps of float32 apart: the answer is that of the oracle
    if the maximum is subtracted and no mask is a number."""
    arguments = draw(seq_lens=(30,), num_heads=2, num_kv_heads=1)
    arguments["q"].zero_()[..., 0] = 1.0
    arguments["scale"] = 1.0
    keys = arguments["k_cache"][..., 0]
    keys.copy_((size + 2 * keys).round())
    out = paged_attention_triton(**arguments, partition_size=8, tile_size=16)
    assert error(out, arguments) < 1e-6


def test_a_nan_of_a_query_stays_in_its_head_where_the_newest_token_is_beside() -> None:
    arguments = draw()
    arguments["q"][1, 2, 5] = torch.nan
    broken = prepare_triton(**taken_out(arguments), partition_size=8).run().isnan()
    assert broken[1, 2].all()
    broken[1, 2] = False
    assert not broken.any()


BESIDE = (
    draw(),
    draw(seq_lens=(1, 20, 8, 9), num_heads=6, alibi=True),
    draw(seq_lens=(1, 1), gaps=True),
    draw(seq_lens=(17, 3), num_heads=3, num_kv_heads=3, head_size=40, gaps=True, alibi=True),
)


@by_dtype
@pytest.mark.parametrize("partition_size", [3, 8, 512])
@pytest.mark.parametrize("step", BESIDE, ids=["gqa", "alibi", "empty", "gaps"])
def test_the_newest_token_beside_the_cache(
    step: dict[str, object], partition_size: int, dtype: torch.dtype
) -> None:
    """Contexts of no token too; q may have gaps between its sequences."""
    tensors = {name: step[name].to(dtype) for name in ("q", "k_cache", "v_cache")}
    arguments = step | tensors
    assert is_right(prepare_triton(**arguments, partition_size=partition_size).run(), arguments)
    beside = taken_out(arguments)
    beside["context_lens"] = beside.pop("seq_lens")
    out = paged_attention_triton_beside(**beside, partition_size=partition_size)
    assert is_right(out, arguments)


def test_a_prepared_step_follows_its_tensors() -> None:
    """A decode loop writes the next token, its length and its block in place, and runs again."""
    arguments = draw(seq_lens=(20, 16))
    prepared = prepare_triton(**arguments, max_seq_len=24, partition_size=8)
    before = prepared.run().clone()
    assert is_right(before, arguments)
    block = arguments["block_tables"][0, 0].clone()
    arguments["block_tables"][1, 2] = block  # shared with the other sequence: it has numbers
    arguments["seq_lens"] += torch.tensor([-7, 3], dtype=torch.int32)
    arguments["q"].mul_(-1)
    prepared.run()
    assert is_right(prepared.out, arguments)
    assert not torch.isclose(prepared.out, before).any(dim=-1).all()


def test_the_result_of_an_earlier_run_does_not_shine_through() -> None:
    """A sequence that is shorter now has partitions that are not written any more."""
    arguments = draw(seq_lens=(40, 40))
    prepared = prepare_triton(**arguments, partition_size=4)
    prepared.run()
    arguments["seq_lens"].copy_(torch.tensor([3, 16]))
    assert is_right(prepared.run(), arguments)
    _, l, acc = prepared.merged()  # in torch, for the probe: by the same rule
    assert is_right(acc / l[..., None], arguments)


def test_the_inputs_are_not_written() -> None:
    arguments = taken_out(draw(gaps=True, alibi=True))
    before = {name: value.clone() for name, value in arguments.items() if isinstance(value, Tensor)}
    prepare_triton(**arguments).run()
    for name, tensor in before.items():
        torch.testing.assert_close(arguments[name], tensor, rtol=0, atol=0, equal_nan=True)


def test_the_output_is_rounded_once() -> None:
    """At most half a step of float16 from the answer: nothing before it is narrow."""
    arguments = draw(dtype=torch.float16)
    wanted = expected(arguments)
    out = paged_attention_triton(**arguments, partition_size=3)
    step = 2.0 ** (wanted.abs().log2().floor() - 10).clamp(min=-24)
    assert ((out.double() - wanted).abs() <= 0.51 * step).all()


# What the cases of the ladder cannot ask -------------------------------------------------------


@pytest.mark.parametrize("name", TRIALS)
def test_every_trial_finds_nothing_wrong(name: str) -> None:
    """The wrong examples are tried on them too: see tests/wrong_examples.py."""
    assert TRIALS[name]() == ""
