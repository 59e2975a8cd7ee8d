"""What people would use in place of the CPU kernel: torch, with everything allocated before.

On K and V that lie contiguously, so without any paging:
    sdpa             scaled_dot_product_attention, one query row for each head
    sdpa_rows        the same with the query heads of a KV head as rows of one matrix
    matmul           matmul, softmax, matmul
On a cache in blocks: copy the blocks of each sequence side by side, then attend.
    gather_own_*     index_select of whole blocks of the plain layout, and a transposing copy
    gather_heads_*   one index_select of the (block, head) rows of the plain layout
    gather_tokens_*  one index_select of blocks of a token-major cache; attention on its
                     transposed view

The memory to copy to and the row numbers are made before, though a server would make the numbers
anew at each step: the peers are given every advantage.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from pa_tutorial.arguments import require
from pa_tutorial.bench.cpu_inputs import Batch

Step = Callable[[], Tensor]  # one decode step: [num_seqs, num_heads, head_size]
Attention = Callable[[Tensor, Tensor, Tensor], Tensor]


def sdpa(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """q [num_seqs, num_heads, head_size]; k, v [num_seqs, num_kv_heads, seq_len, head_size]."""
    shared = q.shape[1] != k.shape[1]
    return scaled_dot_product_attention(q[:, :, None], k, v, enable_gqa=shared)[:, :, 0]


def as_rows(q: Tensor, k: Tensor) -> Tensor:
    """[num_seqs, num_kv_heads, query heads of a KV head, head_size]."""
    return q.unflatten(1, (k.shape[1], -1))


def sdpa_rows(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """sdpa for grouped queries: at decode all query heads of a KV head see the same tokens."""
    return scaled_dot_product_attention(as_rows(q, k), k, v).flatten(1, 2)


def matmul(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The definition: out = softmax(scale * q k^T) v."""
    qk = q.shape[-1] ** -0.5 * as_rows(q, k) @ k.mT
    return (qk.softmax(dim=-1) @ v).flatten(1, 2)


def contiguous_peers(batch: Batch) -> dict[str, Step]:
    """Attention alone, on K and V of each sequence side by side."""
    k, v = batch.contiguous
    q = batch.q
    steps = {"sdpa": lambda: sdpa(q, k, v), "matmul": lambda: matmul(q, k, v)}
    if q.shape[1] != k.shape[1]:  # without shared KV heads it is the same call as sdpa
        steps["sdpa_rows"] = lambda: sdpa_rows(q, k, v)
    return steps


class Gathered:
    """Memory for K and V of all sequences, twice: as they are copied, and transposed."""

    def __init__(self, batch: Batch) -> None:
        shape = batch.shape
        self.batch, self.seq_len = batch, shape.seq_lens[0]
        self.numbers = batch.block_tables.flatten()
        self.of_blocks = len(batch.q), batch.block_tables.shape[1]
        heads = torch.arange(shape.num_kv_heads, dtype=torch.int32)
        # [num_seqs, num_kv_heads, blocks]: row block * num_kv_heads + head
        rows = batch.block_tables[:, None] * shape.num_kv_heads + heads[:, None]
        self.rows = rows.flatten()
        block = shape.num_kv_heads, shape.block_size, shape.head_size
        size = len(self.numbers), *block
        self.copies = [torch.zeros(size, dtype=shape.dtype) for _ in range(2)]
        self.by_head = [torch.zeros(size, dtype=shape.dtype) for _ in range(2)]

    def whole_blocks(self) -> list[Tensor]:
        """Blocks side by side, then heads before blocks: every byte is moved twice."""
        num_seqs, num_blocks = self.of_blocks
        for cache, copied, moved in zip(self.batch.memory, self.copies, self.by_head, strict=True):
            torch.index_select(cache, 0, self.numbers, out=copied)
            of_heads = moved.view(num_seqs, cache.shape[1], num_blocks, *cache.shape[2:])
            of_heads.copy_(copied.unflatten(0, self.of_blocks).transpose(1, 2))
        return self._side_by_side()

    def rows_of_heads(self) -> list[Tensor]:
        """(block, head) rows straight to their places: every byte is moved once."""
        for cache, moved in zip(self.batch.memory, self.by_head, strict=True):
            rows = cache.flatten(2).flatten(0, 1)
            torch.index_select(rows, 0, self.rows, out=moved.view(len(self.rows), -1))
        return self._side_by_side()

    def blocks_of_tokens(self) -> list[Tensor]:
        """Blocks of the token-major cache: moved once, and then read in steps."""
        for cache, copied in zip(self.batch.token_major, self.copies, strict=True):
            torch.index_select(cache, 0, self.numbers, out=copied.view(-1, *cache.shape[1:]))
        num_seqs, _ = self.of_blocks
        _, num_kv_heads, _, head_size = self.batch.k_cache.shape
        views = [copied.view(num_seqs, -1, num_kv_heads, head_size) for copied in self.copies]
        return [view[:, : self.seq_len].transpose(1, 2) for view in views]

    def _side_by_side(self) -> list[Tensor]:
        num_seqs, _ = self.of_blocks
        _, num_kv_heads, _, head_size = self.batch.k_cache.shape
        views = [moved.view(num_seqs, num_kv_heads, -1, head_size) for moved in self.by_head]
        return [view[:, :, : self.seq_len] for view in views]


def gathering_peers(batch: Batch) -> dict[str, Step]:
    """Gather and attend, each way."""
    gathered, q = Gathered(batch), batch.q

    def step(gather: Callable[[], list[Tensor]], attention: Attention) -> Step:
        return lambda: attention(q, *gather())

    return {
        "gather_own_sdpa": step(gathered.whole_blocks, sdpa_rows),
        "gather_own_matmul": step(gathered.whole_blocks, matmul),
        "gather_heads_sdpa": step(gathered.rows_of_heads, sdpa_rows),
        "gather_heads_matmul": step(gathered.rows_of_heads, matmul),
        "gather_tokens_sdpa": step(gathered.blocks_of_tokens, sdpa_rows),
    }


def peers(batch: Batch) -> dict[str, Step]:
    """name -> one decode step of the batch, all of them with the same result.

    Raises ValueError if its sequences are not equally long: the peers would need a mask.
    """
    lens = batch.shape.seq_lens
    require(batch.shape.is_even, "batch.shape.seq_lens", lens, "equal: the peers have no mask")
    return contiguous_peers(batch) | gathering_peers(batch)
