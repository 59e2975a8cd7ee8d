"""Context-parallel decode: blocks dealt out over ranks, parts merged over the network."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from distributed_serving import merge_given
from test_reduce import SIZE, reduced
from torch import Tensor

from pa_tutorial.distributed.context import ContextShare, deal_out, own_part
from pa_tutorial.kernels.geometry import Geometry
from pa_tutorial.paging.layouts import LAYOUTS, by_token
from pa_tutorial.walk.problem import DecodeProblem

EACH_LAYOUT = pytest.mark.parametrize("layout", LAYOUTS)
INF = float("inf")


def problem(**changes: object) -> DecodeProblem:
    sizes = {"seq_lens": (13, 5, 8), "num_kv_heads": 2, "head_size": 32, "block_size": 4}
    return DecodeProblem("name", "isolates", "meaning", **(sizes | changes))


def whole(case: DecodeProblem, layout: str = "plain") -> tuple[Tensor, Tensor, Tensor, Tensor]:
    inputs = case.paged(layout)
    return inputs.k_cache, inputs.v_cache, inputs.block_tables, inputs.seq_lens


# The merge alone.

HEAD_SIZE = 32


def hostile_parts(num_ranks: int, seed: int = 0) -> list[tuple[Tensor, Tensor, Tensor]]:
    """m, l, acc of each rank, one hostile mixture a sequence.

    0 maxima alike; 1 far apart; 2 far above 0 everywhere; 3 far below; 4 only the last rank has
    tokens; 5 only the first; 6 every second rank has none
    """
    rng = torch.Generator().manual_seed(seed)
    m = torch.randn(num_ranks, 7, 2, generator=rng)
    l = 1 + 15 * torch.rand(num_ranks, 7, 2, generator=rng)
    acc = 10 * torch.randn(num_ranks, 7, 2, HEAD_SIZE, generator=rng)
    m[:, 1] += torch.linspace(-1e4, 1e4, num_ranks)[:, None]
    m[:, 2] += 1e4
    m[:, 3] -= 1e4
    m[:-1, 4] = m[1:, 5] = m[1::2, 6] = -INF
    is_empty = m == -INF
    parts = m, l.masked_fill(is_empty, 0.0), acc.masked_fill(is_empty[..., None], 0.0)
    return list(zip(*parts, strict=True))


def merged_in_float64(parts: list[tuple[Tensor, Tensor, Tensor]]) -> np.ndarray:
    """By the definition: every exponential counted from the largest of all ranks."""
    m, l, acc = (torch.stack(tensors).double().numpy() for tensors in zip(*parts, strict=True))
    weights = np.exp(m - m.max(axis=0))
    return (acc * weights[..., None]).sum(axis=0) / (l * weights).sum(axis=0)[..., None]


@pytest.mark.parametrize("num_ranks", [2, 4])
def test_merged_parts_are_those_of_float64_and_of_the_reduce_kernel(
    num_ranks: int, ranks_of: Callable
) -> None:
    """A rank is a partition: the kernel of v2, in the simulator, gets the same parts."""
    parts = hostile_parts(num_ranks)
    m, l, acc = (torch.stack(tensors, dim=2) for tensors in zip(*parts, strict=True))
    arguments = {
        "exp_sums": l.contiguous(),
        "max_logits": m.contiguous(),
        "tmp_out": torch.where(l[..., None] == 0, 0.0, acc / l[..., None]).contiguous(),
        "seq_lens": torch.full((7,), num_ranks * SIZE, dtype=torch.int32),
    }
    geometry = Geometry(HEAD_SIZE, 16, torch.float32, 64, partition_size=SIZE)
    outs = [out for out, _ in ranks_of(num_ranks).run(merge_given, parts)]
    for out in outs:
        np.testing.assert_allclose(out, merged_in_float64(parts), rtol=2e-6, atol=1e-6)
        assert torch.equal(out, outs[0]), "the ranks have different results"
    np.testing.assert_allclose(outs[0], reduced(geometry, arguments), rtol=1e-5, atol=1e-5)


def test_a_nan_of_one_rank_is_not_lost(ranks_of: Callable) -> None:
    """A maximum over ranks may drop a NaN; the result must not look healthy."""
    parts = hostile_parts(2)
    for tensor in parts[1]:
        tensor[0, 0] = torch.nan
    for out, _ in ranks_of(2).run(merge_given, parts):
        assert out[0, 0].isnan().all()
        assert not out[0, 1].isnan().any()
        assert not out[1:].isnan().any()


# Dealing out.


def shares(case: DecodeProblem, num_ranks: int, layout: str = "plain") -> list[ContextShare]:
    tensors = whole(case, layout)
    return [deal_out(*tensors, rank, num_ranks) for rank in range(num_ranks)]


SHARED = problem(seq_lens=(33, 40, 37), shared_blocks=2, block_size=8)


@pytest.mark.parametrize("num_ranks", [1, 2, 3, 7])
@pytest.mark.parametrize("case", [problem(), SHARED], ids=["own_blocks", "shared_blocks"])
@EACH_LAYOUT
def test_every_token_is_on_exactly_one_rank(
    layout: str, case: DecodeProblem, num_ranks: int
) -> None:
    k_cache, v_cache, block_tables, seq_lens = whole(case, layout)
    k_whole, v_whole = by_token(k_cache, v_cache)
    block_size = case.block_size
    found: list[tuple[int, int]] = []
    for rank, share in enumerate(shares(case, num_ranks, layout)):
        width = -(-block_tables.shape[1] // num_ranks)
        assert share.block_tables.shape == (len(seq_lens), width), "as wide on all ranks"
        # One by one: in runs, ranks would have nothing to do until a sequence is long.
        assert share.block_indices.tolist() == [rank + num_ranks * i for i in range(width)]
        k, v = by_token(share.k_cache, share.v_cache)
        positions, is_token = share.positions(), share.positions() < seq_lens[:, None]
        for sequence, slot in is_token.nonzero().tolist():
            position = int(positions[slot])
            found.append((sequence, position))
            block = block_tables[sequence, position // block_size]
            own = share.block_tables[sequence, slot // block_size]
            place, own_place = (block, position % block_size), (own, slot % block_size)
            assert torch.equal(k[own_place], k_whole[place])
            assert torch.equal(v[own_place], v_whole[place])
        blocks = share.block_tables[share.block_tables > 0].unique()
        assert len(share.k_cache) == 1 + len(blocks), "the null block, and all others are used"
    assert sorted(found) == [(s, p) for s, n in enumerate(seq_lens.tolist()) for p in range(n)]


def test_a_shared_block_is_copied_once() -> None:
    for share in shares(SHARED, 2):
        first = share.block_tables[:, 0]
        assert (first == first[0]).all(), "the shared block has two copies"


@EACH_LAYOUT
def test_block_0_of_a_rank_belongs_to_nobody_and_holds_nan(layout: str) -> None:
    for share in shares(problem(), 4, layout):
        assert share.k_cache[0].isnan().all()
        assert share.v_cache[0].isnan().all()
        is_token = share.positions() < torch.tensor([[13], [5], [8]])
        used = is_token.unflatten(1, (-1, 4)).any(dim=-1)
        assert ((share.block_tables > 0) == used).all()


@EACH_LAYOUT
def test_a_rank_has_its_own_pool(layout: str) -> None:
    """One that is a view would show what is written to the whole cache later."""
    tensors = whole(problem(), layout)
    share = deal_out(*tensors, 0, 1)
    before = share.k_cache.clone(), share.v_cache.clone()
    for cache in tensors[:2]:
        cache.fill_(7.0)
    torch.testing.assert_close((share.k_cache, share.v_cache), before, equal_nan=True)


@pytest.mark.parametrize("rank", [-1, 2])
def test_a_rank_that_is_not_there_is_refused(rank: int) -> None:
    with pytest.raises(ValueError, match=f"rank is {rank}; it must be 0 to 1"):
        deal_out(*whole(problem()), rank, 2)


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
    k_cache, v_cache, block_tables, seq_lens = whole(problem())
    seq_lens[0], block_tables[0, 1] = seq_len, block
    with pytest.raises(ValueError, match=message):
        deal_out(k_cache, v_cache, block_tables, seq_lens, rank, 2)


def test_the_part_of_no_token_is_that_of_online_softmax() -> None:
    """A rank without a block: -inf, 0, 0, and no NaN."""
    case = problem(seq_lens=(3, 2))
    inputs = case.paged("plain")
    share = deal_out(*whole(case), 3, 4)
    part = own_part(inputs.q, share, inputs.seq_lens, inputs.scale)
    assert (part.m == -INF).all()
    assert not part.l.any()
    assert not part.acc.any()
