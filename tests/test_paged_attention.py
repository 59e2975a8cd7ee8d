"""Attention over a paged cache, what it refuses, and the hostile inputs that problems give it."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from pa_tutorial.attention.paged import paged_gather, require_paged_inputs
from pa_tutorial.cases import DECODE_CASES
from pa_tutorial.decode_inputs import PagedInputs
from pa_tutorial.paging.allocator import BlockAllocator
from pa_tutorial.paging.block_table import BlockTable, padded_block_tables
from pa_tutorial.paging.kv_cache import PagedKVCache
from pa_tutorial.paging.layouts import LAYOUTS, by_token
from pa_tutorial.paging.prefix_cache import PrefixCachingAllocator
from pa_tutorial.problem import DTYPES, DecodeProblem

EACH_LAYOUT = pytest.mark.parametrize("layout", LAYOUTS)
EACH_DTYPE = pytest.mark.parametrize("dtype", DTYPES, ids=str)
EACH_CASE = pytest.mark.parametrize("case", DECODE_CASES, ids=lambda case: case.name)


def problem(**changes: object) -> DecodeProblem:
    sizes = {"seq_lens": (13, 5, 8), "num_kv_heads": 2, "head_size": 16, "block_size": 4}
    return DecodeProblem("name", "isolates", "meaning", **(sizes | changes))


def attend(inputs: PagedInputs, **changes: Tensor) -> Tensor:
    return paged_gather(**(vars(inputs) | changes))


def first_five(inputs: PagedInputs, **changes: Tensor) -> dict[str, Tensor]:
    """The arguments of require_paged_inputs."""
    names = ("q", "k_cache", "v_cache", "block_tables", "seq_lens")
    return {name: getattr(inputs, name) for name in names} | changes


def changed(tensor: Tensor, place: tuple[int, ...], value: int) -> Tensor:
    tensor = tensor.clone()
    tensor[place] = value
    return tensor


@EACH_DTYPE
@pytest.mark.parametrize("changes", [{}, {"num_kv_heads": 1}, {"alibi": True, "scores": "sharp"}])
def test_both_layouts_give_the_same_bits(dtype, changes) -> None:
    case = problem(dtype=dtype, **changes)
    outs = [attend(case.paged(layout)) for layout in LAYOUTS]
    assert outs[0].isfinite().all()
    assert torch.equal(*outs)


@EACH_LAYOUT
@EACH_DTYPE
def test_physical_block_numbers_do_not_change_a_bit(layout, dtype) -> None:
    lowest = ((1, 2, 3, 4), (5, 6), (7, 8))
    scattered = ((11, 3, 29, 1), (8, 30), (2, 14))
    outs = [attend(problem(dtype=dtype, tables=t).paged(layout)) for t in (lowest, scattered)]
    assert torch.equal(*outs)


@EACH_LAYOUT
def test_each_sequence_is_alone_with_its_own_blocks(layout) -> None:
    inputs = problem().paged(layout)
    batch = attend(inputs)
    for sequence in range(3):
        rows = slice(sequence, sequence + 1)
        alone = {name: getattr(inputs, name)[rows] for name in ("q", "block_tables", "seq_lens")}
        assert torch.equal(attend(inputs, **alone), batch[rows])


@EACH_LAYOUT
def test_nothing_that_is_given_is_written(layout) -> None:
    inputs = problem(alibi=True, strided_q=True).paged(layout)
    given = {name: t for name, t in vars(inputs).items() if isinstance(t, Tensor)}
    before = {name: tensor.clone() for name, tensor in given.items()}
    attend(inputs)
    for name, tensor in given.items():
        assert torch.equal(tensor.nan_to_num(7), before[name].nan_to_num(7)), name
        assert torch.equal(tensor.isnan(), before[name].isnan()), name


@pytest.mark.parametrize(
    ("argument", "change", "message"),
    [
        ("q", lambda q: q[0], r"q has shape \[4, 16\]; it must have 3 dimensions"),
        ("q", lambda q: q[:2], r"block_tables has shape \[3, 5\]; .* each of the 2 sequences of q"),
        ("k_cache", lambda k: k[0, 0], "k_cache has shape"),
        ("v_cache", lambda v: v[:-1], "v_cache is"),
        ("block_tables", lambda t: t[:2], r"block_tables has shape \[2, 5\]; .* the 3 sequences"),
        ("block_tables", lambda t: t[0], r"block_tables has shape \[5\]"),
        ("block_tables", lambda t: t.long(), "block_tables is torch.int64; it must be torch.int32"),
        ("block_tables", lambda t: t[:, :3], r"seq_lens\[0\] is 13; it must be 1 to 12"),
        ("block_tables", lambda t: changed(t, (1, 1), 99), r"block_tables\[1\] names block 99"),
        ("block_tables", lambda t: changed(t, (2, 0), -1), r"block_tables\[2\] names block -1"),
        ("seq_lens", lambda n: n[:2], r"seq_lens has shape \[2\]; it must be \[3\]"),
        ("seq_lens", lambda n: n[:, None], r"seq_lens has shape \[3, 1\]; it must be \[3\]"),
        ("seq_lens", lambda n: n.long(), "seq_lens is torch.int64; it must be torch.int32"),
        ("seq_lens", lambda n: changed(n, (1,), 0), r"seq_lens\[1\] is 0; it must be 1 to 20"),
        ("seq_lens", lambda n: changed(n, (0,), 21), r"seq_lens\[0\] is 21; it must be 1 to 20"),
        ("seq_lens", lambda n: changed(n, (2,), -4), r"seq_lens\[2\] is -4"),
    ],
)
@EACH_LAYOUT
def test_inputs_that_do_not_fit_are_refused(
    layout, argument, change: Callable[[Tensor], Tensor], message
) -> None:
    inputs = problem().paged(layout)
    wrong = {argument: change(getattr(inputs, argument))}
    with pytest.raises(ValueError, match=message):
        require_paged_inputs(**first_five(inputs, **wrong))
    with pytest.raises(ValueError, match=message):
        attend(inputs, **wrong)


@EACH_LAYOUT
def test_the_first_and_the_last_block_of_the_pool_may_be_used(layout) -> None:
    inputs = problem(tables=((0, 9, 5, 7), (3, 1), (4, 6))).paged(layout)
    assert len(inputs.k_cache) == 11
    smaller = {name: getattr(inputs, name)[:10] for name in ("k_cache", "v_cache")}
    require_paged_inputs(**first_five(inputs, **smaller))
    assert torch.equal(attend(inputs, **smaller), attend(inputs))
    with pytest.raises(ValueError, match=r"names block 9; it must be 0 to 8"):
        attend(inputs, **{name: cache[:9] for name, cache in smaller.items()})


@EACH_LAYOUT
@pytest.mark.parametrize("pad", [0, -1, 10**6, 1])
def test_pad_entries_behind_the_end_are_not_looked_at(layout, pad) -> None:
    inputs = problem().paged(layout)
    padded = inputs.block_tables.clone()
    for row, seq_len in zip(padded, (13, 5, 8), strict=True):
        row[-(-seq_len // 4) :] = pad
    require_paged_inputs(**first_five(inputs, block_tables=padded))
    assert torch.equal(attend(inputs, block_tables=padded), attend(inputs))


# Blocks that sequences share


def k_and_v(layer: int, tokens: list[int]) -> tuple[Tensor, Tensor]:
    """K and V [num_tokens, 2, 16]; those of a token depend on all tokens before it too."""
    pairs = []
    for end in range(1, len(tokens) + 1):
        rng = np.random.default_rng((layer, *tokens[:end]))
        pairs.append(rng.standard_normal((2, 2, 16)).astype(np.float32))
    key, value = torch.from_numpy(np.stack(pairs, axis=1))
    return key, value


def append(table: BlockTable, cache: PagedKVCache, tokens: list[int]) -> None:
    """What a step does with new tokens: the copies first, then K and V of every layer."""
    appended = table.append(tokens)
    cache.copy_blocks(appended.copies)
    for layer in range(cache.num_layers):
        key, value = k_and_v(layer, table.token_ids)
        new = slice(table.num_tokens - len(tokens), None)
        cache.write(layer, key[new], value[new], torch.tensor(appended.slots))


def forked(cache: PagedKVCache) -> list[BlockTable]:
    table = BlockTable(BlockAllocator(cache.layout.num_blocks), 4)
    append(table, cache, [1, 2, 3, 4, 5, 6])
    return [table, table.fork()]


def hit_by_prefix(cache: PagedKVCache) -> list[BlockTable]:
    pool = PrefixCachingAllocator(cache.layout.num_blocks)
    tables = [BlockTable(pool, 4), BlockTable(pool, 4)]
    append(tables[0], cache, [1, 2, 3, 4, 5, 6, 7, 8, 9])
    append(tables[1], cache, [1, 2, 3, 4, 5, 6, 7, 8, 20, 21])
    return tables


@EACH_LAYOUT
@pytest.mark.parametrize("story", [forked, hit_by_prefix])
def test_shared_blocks_give_the_bits_that_copies_give(layout, story) -> None:
    shared = PagedKVCache(LAYOUTS[layout](12, 2, 16, 4), num_layers=2)
    tables = story(shared)
    assert tables[0].blocks[0] == tables[1].blocks[0]
    for step in range(5):  # both sides write, in turns
        append(tables[0], shared, [30 + step])
        append(tables[1], shared, [40 + step])
    assert tables[0].blocks[0] == tables[1].blocks[0]

    copies = PagedKVCache(LAYOUTS[layout](20, 2, 16, 4), num_layers=2)
    pool = BlockAllocator(20)
    alone = [BlockTable(pool, 4), BlockTable(pool, 4)]
    for own, table in zip(alone, tables, strict=True):
        append(own, copies, table.token_ids)
    assert not set(alone[0].blocks) & set(alone[1].blocks)

    q = torch.randn(2, 4, 16, generator=torch.Generator().manual_seed(0))  # 2 heads a KV head
    seq_lens = torch.tensor([table.num_tokens for table in tables], dtype=torch.int32)
    for layer in (0, 1):
        outs = [
            paged_gather(q, c.k[layer], c.v[layer], padded_block_tables(t), seq_lens, 0.25)
            for c, t in ((shared, tables), (copies, alone))
        ]
        assert outs[0].isfinite().all()
        assert torch.equal(*outs)


# The inputs that problems give


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
def test_no_block_table_is_the_identity(case) -> None:
    tables, _ = case.block_tables()
    for table in tables:
        assert len(set(table)) == len(table)
        if len(table) > 1:
            assert table != list(range(table[0], table[0] + len(table)))


@pytest.mark.parametrize("seed", range(200))
def test_no_seed_draws_the_identity(seed) -> None:
    tables, num_blocks = problem(seed=seed).block_tables()
    numbers = [block for table in tables for block in table]
    assert len(set(numbers)) == len(numbers)
    assert set(numbers) <= set(range(1, num_blocks))
    assert all(table != list(range(table[0], table[0] + len(table))) for table in tables)


@EACH_CASE
def test_pad_columns_are_there_and_name_block_zero(case) -> None:
    inputs = case.paged("plain")
    tables, _ = case.block_tables()
    width = max(len(table) for table in tables) + case.pad_columns
    assert case.pad_columns >= 1
    assert inputs.block_tables.shape == (len(tables), width)
    assert (inputs.block_tables.dtype, inputs.seq_lens.dtype) == (torch.int32, torch.int32)
    for row, table in zip(inputs.block_tables.tolist(), tables, strict=True):
        assert row == table + [0] * (width - len(table))


@EACH_CASE
def test_block_zero_is_owned_only_where_a_case_says_so(case) -> None:
    assert owned_slots(case)[0].any() == case.block_zero
    assert case.block_zero == (case.name == "block_zero_in_use")


@pytest.mark.parametrize("shared_blocks", [1, 2])
def test_shared_blocks_hold_the_same_tokens_under_the_same_numbers(shared_blocks) -> None:
    case = problem(seq_lens=(13, 9, 8), shared_blocks=shared_blocks)
    tables, _ = case.block_tables()
    inputs = case.inputs()
    assert len({tuple(table[:shared_blocks]) for table in tables}) == 1
    own = [block for table in tables for block in table[shared_blocks:]]
    assert len(set(own)) == len(own)
    end = 4 * shared_blocks
    for tokens in (inputs.keys, inputs.values):
        assert torch.equal(tokens[0][:end], tokens[1][:end])
        assert torch.equal(tokens[0][:end], tokens[2][:end])
        assert not torch.equal(tokens[0][end : end + 1], tokens[1][end : end + 1])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"block_size": 0}, "block_size is 0; it must be at least 1"),
        ({"shared_blocks": 2}, "shared_blocks is 2; it must be 0 to 1"),
        ({"shared_blocks": -1}, "shared_blocks is -1; it must be 0 to 1"),
    ],
)
def test_impossible_block_tables_are_refused(changes, message) -> None:
    with pytest.raises(ValueError, match=message):
        problem(**changes)


TAIL = next(case for case in DECODE_CASES if case.name == "tail")


def test_a_batch_without_sequences_is_refused() -> None:
    inputs = TAIL.paged("vllm")
    none = slice(0, 0)
    with pytest.raises(ValueError, match="at least one sequence"):
        paged_gather(
            inputs.q[none],
            inputs.k_cache,
            inputs.v_cache,
            inputs.block_tables[none],
            inputs.seq_lens[none],
            1.0,
        )


def test_an_unknown_layout_is_named_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"layout is 'vLLM'; it must be one of .*'vllm', 'plain'"):
        TAIL.paged("vLLM")
