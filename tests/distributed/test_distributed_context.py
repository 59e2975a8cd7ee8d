"""Context-parallel decode: blocks dealt out over ranks, parts merged over the network."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from pa_tutorial.distributed.context import deal_out
from pa_tutorial.paging.layouts import LAYOUTS, by_token
from pa_tutorial.walk.problem import DecodeProblem
from tests.distributed.distributed_serving import merge_given

HEAD_SIZE = 32


def whole(layout: str = "plain", **changes: object) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    sizes = {"seq_lens": (13, 5, 8), "num_kv_heads": 2, "head_size": HEAD_SIZE, "block_size": 4}
    inputs = DecodeProblem("name", "isolates", "meaning", **(sizes | changes)).paged(layout)
    return inputs.k_cache, inputs.v_cache, inputs.block_tables, inputs.seq_lens


def hostile_parts(num_ranks: int) -> list[tuple[Tensor, Tensor, Tensor]]:
    """m, l, acc of each rank, one hostile mixture a sequence.

    0 maxima alike; 1 far apart; 2 far above 0 everywhere; 3 far below; 4 only the last rank has
    tokens; 5 only the first; 6 every second rank has none
    """
    rng = torch.Generator().manual_seed(0)
    m = torch.randn(num_ranks, 7, 2, generator=rng)
    l = 1 + 15 * torch.rand(num_ranks, 7, 2, generator=rng)
    acc = 10 * torch.randn(num_ranks, 7, 2, HEAD_SIZE, generator=rng)
    m[:, 1] += torch.linspace(-1e4, 1e4, num_ranks)[:, None]
    m[:, 2] += 1e4
    m[:, 3] -= 1e4
    m[:-1, 4] = m[1:, 5] = m[1::2, 6] = -torch.inf
    is_empty = m == -torch.inf
    parts = m, l.masked_fill(is_empty, 0.0), acc.masked_fill(is_empty[..., None], 0.0)
    return list(zip(*parts, strict=True))


@pytest.mark.parametrize("num_ranks", [2, 4])
def test_merged_parts_are_those_of_float64(num_ranks: int, ranks_of: Callable) -> None:
    """By the definition: every exponential counted from the largest of all ranks."""
    parts = hostile_parts(num_ranks)
    m, l, acc = (torch.stack(tensors).double().numpy() for tensors in zip(*parts, strict=True))
    weights = np.exp(m - m.max(axis=0))
    expected = (acc * weights[..., None]).sum(axis=0) / (l * weights).sum(axis=0)[..., None]
    outs = [out for out, _ in ranks_of(num_ranks).run(merge_given, parts)]
    for out in outs:
        np.testing.assert_allclose(out, expected, rtol=2e-6, atol=1e-6)
        assert torch.equal(out, outs[0]), "the ranks have different results"


def test_a_nan_of_one_rank_is_not_lost(ranks_of: Callable) -> None:
    """A maximum over ranks may drop a NaN; the result must not look healthy."""
    parts = hostile_parts(2)
    for tensor in parts[1]:
        tensor[0, 0] = torch.nan
    for out, _ in ranks_of(2).run(merge_given, parts):
        assert out[0, 0].isnan().all()
        assert not out[0, 1].isnan().any()
        assert not out[1:].isnan().any()


SHARED = {"seq_lens": (33, 40, 37), "shared_blocks": 2, "block_size": 8}


@pytest.mark.parametrize("num_ranks", [1, 2, 3, 7])
@pytest.mark.parametrize("changes", [{}, SHARED], ids=["own_blocks", "shared_blocks"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_token_is_on_exactly_one_rank(layout: str, changes: dict, num_ranks: int) -> None:
    """And a block that is shared is copied once."""
    k_cache, v_cache, block_tables, seq_lens = whole(layout, **changes)
    k_whole, v_whole = by_token(k_cache, v_cache)
    block_size = changes.get("block_size", 4)
    width = -(-block_tables.shape[1] // num_ranks)
    found: list[tuple[int, int]] = []
    for rank in range(num_ranks):
        share = deal_out(k_cache, v_cache, block_tables, seq_lens, rank, num_ranks)
        assert share.block_tables.shape == (len(seq_lens), width), "as wide on all ranks"
        # One by one: in runs, ranks would have nothing to do until a sequence is long.
        assert share.block_indices.tolist() == [rank + num_ranks * i for i in range(width)]
        k, v = by_token(share.k_cache, share.v_cache)
        assert k[0].isnan().all(), "block 0 belongs to nobody"
        assert v[0].isnan().all()
        positions, used = share.positions(), {0}
        for sequence, slot in (positions < seq_lens[:, None]).nonzero().tolist():
            position = int(positions[slot])
            found.append((sequence, position))
            block = block_tables[sequence, position // block_size]
            own = int(share.block_tables[sequence, slot // block_size])
            place, own_place = (block, position % block_size), (own, slot % block_size)
            assert torch.equal(k[own_place], k_whole[place])
            assert torch.equal(v[own_place], v_whole[place])
            used.add(own)
        assert used == set(range(len(k))) == set(share.block_tables.unique().tolist()) | {0}
        if changes and rank < 2:
            assert len(share.block_tables[:, 0].unique()) == 1, "a shared block has two copies"
    assert sorted(found) == [(s, p) for s, n in enumerate(seq_lens.tolist()) for p in range(n)]


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize(
    ("seq_len", "block", "message"),
    [
        (0, 1, r"seq_lens\[0\] is 0; it must be 1 to 20"),
        (21, 1, r"seq_lens\[0\] is 21; it must be 1 to 20"),
        (13, -1, r"block_tables\[0\] names block -1"),
        (13, 99, r"block_tables\[0\] names block 99"),
    ],
)
def test_what_cannot_be_dealt_out_is_refused_on_every_rank(
    seq_len: int, block: int, message: str, rank: int
) -> None:
    """A sequence without tokens would be NaN, block -1 the last one of the pool; and a rank that
    refuses alone would leave the others waiting."""
    k_cache, v_cache, block_tables, seq_lens = whole()
    seq_lens[0], block_tables[0, 1] = seq_len, block
    with pytest.raises(ValueError, match=message):
        deal_out(k_cache, v_cache, block_tables, seq_lens, rank, 2)


@pytest.mark.parametrize("rank", [-1, 2])
def test_a_rank_that_is_not_there_is_refused(rank: int) -> None:
    with pytest.raises(ValueError, match=f"rank is {rank}; it must be 0 to 1"):
        deal_out(*whole(), rank, 2)
