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

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from pa_tutorial.arguments import require
from pa_tutorial.bench.cpu_inputs import Batch, Step


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


class Gathered:
    """Memory for K and V of all sequences, twice: as they are copied, and with heads outside."""

    def __init__(self, batch: Batch) -> None:
        shape = batch.shape
        self.batch, self.seq_len = batch, shape.seq_lens[0]
        self.numbers = batch.block_tables.flatten()
        heads = torch.arange(shape.num_kv_heads, dtype=torch.int32)
        # [num_seqs, num_kv_heads, blocks]: row block * num_kv_heads + head
        rows = batch.block_tables[:, None] * shape.num_kv_heads + heads[:, None]
        self.rows = rows.flatten()
        num_seqs, num_blocks = batch.block_tables.shape
        size = num_seqs, num_blocks, shape.num_kv_heads, shape.block_size, shape.head_size
        self.copies = torch.zeros(2, *size, dtype=shape.dtype)
        self.by_head = torch.zeros_like(self.copies.transpose(2, 3).contiguous())

    def whole_blocks(self) -> list[Tensor]:
        """Blocks side by side, then heads before blocks: every byte is moved twice."""
        for cache, copied, moved in zip(self.batch.memory, self.copies, self.by_head, strict=True):
            torch.index_select(cache, 0, self.numbers, out=copied.flatten(0, 1))
            moved.copy_(copied.transpose(1, 2))
        return self.side_by_side()

    def rows_of_heads(self) -> list[Tensor]:
        """(block, head) rows straight to their places: every byte is moved once."""
        for cache, moved in zip(self.batch.memory, self.by_head, strict=True):
            rows = cache.flatten(2).flatten(0, 1)
            torch.index_select(rows, 0, self.rows, out=moved.view(len(self.rows), -1))
        return self.side_by_side()

    def side_by_side(self) -> list[Tensor]:
        return [moved.flatten(2, 3)[:, :, : self.seq_len] for moved in self.by_head]

    def blocks_of_tokens(self) -> list[Tensor]:
        """Blocks of the token-major cache: moved once, and then read in steps."""
        found = []
        for cache, copied in zip(self.batch.token_major, self.copies, strict=True):
            torch.index_select(cache, 0, self.numbers, out=copied.view(-1, *cache.shape[1:]))
            tokens = copied.view(len(copied), -1, *cache.shape[2:])
            found.append(tokens[:, : self.seq_len].transpose(1, 2))
        return found


def peers(batch: Batch) -> dict[str, Step]:
    """name -> one decode step of the batch, all of them with the same result.

    Raises ValueError if its sequences are not equally long: the peers would need a mask.
    """
    lens = batch.shape.seq_lens
    require(batch.shape.is_even, "batch.shape.seq_lens", lens, "equal: the peers have no mask")
    return contiguous_peers(batch) | gathering_peers(batch)


def contiguous_peers(batch: Batch) -> dict[str, Step]:
    """Attention alone, on K and V of each sequence side by side."""
    q, (k, v) = batch.q, batch.contiguous
    steps = {"sdpa": lambda: sdpa(q, k, v), "matmul": lambda: matmul(q, k, v)}
    if q.shape[1] != k.shape[1]:  # without shared KV heads it is the same call as sdpa
        steps["sdpa_rows"] = lambda: sdpa_rows(q, k, v)
    return steps


def gathering_peers(batch: Batch) -> dict[str, Step]:
    """Gather and attend, each way."""
    q, gathered = batch.q, Gathered(batch)
    return {
        "gather_own_sdpa": lambda: sdpa_rows(q, *gathered.whole_blocks()),
        "gather_own_matmul": lambda: matmul(q, *gathered.whole_blocks()),
        "gather_heads_sdpa": lambda: sdpa_rows(q, *gathered.rows_of_heads()),
        "gather_heads_matmul": lambda: matmul(q, *gathered.rows_of_heads()),
        "gather_tokens_sdpa": lambda: sdpa_rows(q, *gathered.blocks_of_tokens()),
    }
