"""The ways to store K and V that notebook 26 compares: before paging, gathered, and paged.

Each replaces the engine's Runner. The model around attention, the scheduler and the choice of
tokens stay the same; the ways differ only in where a decode step finds K and V. They work for one
batch of equally long sequences whose prompts the engine has computed.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from pa_tutorial.attention.backend import Backend
from pa_tutorial.attention.paged import gather_backend, online_backend
from pa_tutorial.bench.cpu_peers import gather_heads, matmul, rows_of_heads, sdpa
from pa_tutorial.engine.batch import Batch
from pa_tutorial.engine.runner import Runner
from pa_tutorial.kernels.cpu.backend import cpu_backend

Attention = Callable[[Tensor, Tensor, Tensor], Tensor]  # q, k, v as in cpu_peers.sdpa


class OtherWay:
    """Runs the decode steps of a batch its own way, and lets the Runner compute prompts."""

    def __init__(self, runner: Runner) -> None:
        self.runner, self.cache = runner, runner.cache

    @torch.no_grad()
    def run(self, batch: Batch) -> Tensor:
        """As Runner.run."""
        if batch.num_decodes < len(batch.query_lens):
            return self.runner.run(batch)
        self.begin(batch)

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return self.decode(layer, q, k, v, batch)

        model = self.runner.model
        return model.run(batch.input_ids, batch.positions, attend, rows=batch.last_rows)

    def begin(self, batch: Batch) -> None:
        """Prepare what a step needs once for all layers."""

    def decode(self, layer: int, q: Tensor, k: Tensor, v: Tensor, batch: Batch) -> Tensor:
        """Attention of the new tokens; q, k and v are [num_seqs, heads, head_size]."""
        raise NotImplementedError


class NoAttention(OtherWay):
    """Stores and reads nothing, to time the rest of a step. Its tokens are wrong."""

    def decode(self, layer: int, q: Tensor, k: Tensor, v: Tensor, batch: Batch) -> Tensor:
        return q


class ContiguousPasts(OtherWay):
    """One tensor per sequence and layer, for K and for V. Each step makes new ones, one token
    longer, and stacks the tensors of all sequences."""

    def __init__(self, runner: Runner) -> None:
        super().__init__(runner)
        self.pasts: dict[int, list[list[Tensor]]] = {}  # per layer: K of each sequence, and V

    def decode(self, layer: int, q: Tensor, k: Tensor, v: Tensor, batch: Batch) -> Tensor:
        olds = self.pasts[layer] if layer in self.pasts else self.from_blocks(layer, batch)
        pairs = zip(olds, (k, v), strict=True)
        self.pasts[layer] = [
            [torch.cat([past, token[:, None]], dim=1) for past, token in zip(old, new, strict=True)]
            for old, new in pairs
        ]
        return sdpa(q, *map(torch.stack, self.pasts[layer]))

    def from_blocks(self, layer: int, batch: Batch) -> list[list[Tensor]]:
        """K and V of the prompts, each [num_heads, prompt_len, head_size]."""
        lens = (batch.seq_lens - 1).tolist()
        pasts = [
            self.cache.read(layer, table, seq_len)
            for table, seq_len in zip(batch.block_tables, lens, strict=True)
        ]
        return [[x.transpose(0, 1).contiguous() for x in side] for side in zip(*pasts, strict=True)]


class BlocksInALoop(OtherWay):
    """K and V stay in the engine's blocks. In every step, a loop in Python copies each sequence's
    blocks one by one into a contiguous tensor.

    Source: the rosellm project, "paged attention in rosellm": its 281.7 tokens/s, the engine with
    one tensor for all blocks and without paged attention.
    """

    def decode(self, layer: int, q: Tensor, k: Tensor, v: Tensor, batch: Batch) -> Tensor:
        self.cache.write(layer, k, v, batch.slot_mapping)
        tables, seq_len = batch.block_tables.tolist(), int(batch.seq_lens[0])
        caches = self.cache.k[layer], self.cache.v[layer]
        pasts = [torch.stack([past(cache, table, seq_len) for table in tables]) for cache in caches]
        return sdpa(q, *pasts)


def past(cache: Tensor, table: list[int], seq_len: int) -> Tensor:
    """K or V of one sequence, [num_heads, seq_len, head_size]."""
    _, num_heads, block_size, head_size = cache.shape
    copied = cache.new_empty(num_heads, seq_len, head_size)
    for index, block in enumerate(table):
        first = index * block_size
        take = min(block_size, seq_len - first)
        copied[:, first : first + take].copy_(cache[block, :, :take])
    return copied


class Gathered(OtherWay):
    """K and V stay in the engine's blocks. One index_select per layer copies the blocks of all
    sequences into memory that is allocated once, which is the best that torch can do."""

    def __init__(self, runner: Runner, attention: Attention) -> None:
        super().__init__(runner)
        self.attention = attention
        # No block is shared, so a batch can't use more blocks than there are.
        self.memory = torch.zeros(2, self.cache.k[0].numel())

    def begin(self, batch: Batch) -> None:
        tables, (_, num_heads, *block) = batch.block_tables, self.cache.k[0].shape
        self.places = self.cache.places(batch.slot_mapping)
        self.rows = rows_of_heads(tables, num_heads)
        self.size = len(tables), num_heads, tables.shape[1], *block

    def decode(self, layer: int, q: Tensor, k: Tensor, v: Tensor, batch: Batch) -> Tensor:
        self.cache.write(layer, k, v, self.places)
        seq_len, length = int(batch.seq_lens[0]), math.prod(self.size)
        caches = zip((self.cache.k[layer], self.cache.v[layer]), self.memory, strict=True)
        sides = (gather_heads(cache, self.rows, m[:length].view(self.size)) for cache, m in caches)
        return self.attention(q, *(side[:, :, :seq_len] for side in sides))


@dataclass(frozen=True)
class Way:
    """words: for tables and figures. backend: the engine's. runner: replaces its Runner."""

    words: str
    backend: Backend = cpu_backend
    runner: Callable[[Runner], OtherWay] | None = None


GATHERS = {
    f"gather_blocks_{name}": Way(
        f"gather, block-major, {name}", runner=partial(Gathered, attention=attention)
    )
    for name, attention in (("sdpa", sdpa), ("matmul", matmul))
}
WAYS = {
    "block_lists": Way("blocks copied by a loop in Python", runner=BlocksInALoop),
    "contiguous": Way("contiguous pasts, cat and stack", runner=ContiguousPasts),
    **GATHERS,
    "paged_gather": Way("paged_gather", gather_backend),
    "paged_online": Way("paged_online", online_backend),
    "cpu": Way("cpu"),
    "no_attention": Way("no attention at all", runner=NoAttention),
}
