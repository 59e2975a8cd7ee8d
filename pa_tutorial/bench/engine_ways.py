"""The ways to keep K and V that are compared, by name."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from pa_tutorial.bench.cpu_stages import NOT_ON_A_CPU, SIMULATED
from pa_tutorial.bench.engine_pasts import (
    BlockLists,
    ContiguousPasts,
    NoAttention,
    attend_padded,
    mask_of,
)
from pa_tutorial.engine.runner import Runner
from pa_tutorial.walk.ladder import STAGES

Attention = Callable[[Tensor, Tensor, Tensor, Tensor | None, float], Tensor]


def matmul_padded(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    """The definition of attention; shapes as in attend_padded."""
    qk = (scale * q)[:, :, None] @ k.mT
    if mask is not None:
        qk = qk.masked_fill(~mask, float("-inf"))
    return (qk.softmax(dim=-1) @ v)[:, :, 0]


class Gather:
    """The best that torch can do with blocks: one index_select into memory that is there already.

    Called as a stage of the ladder. The numbers of rows are made once a step and serve every
    layer and both K and V; places without a token are sliced away, or masked where lengths differ.
    """

    def __init__(self, attention: Attention, num_rows: int, row_size: int) -> None:
        self.attention = attention
        self.memory = torch.zeros(2, num_rows * row_size)  # touched: it is the system's no more
        self.tables: Tensor | None = None

    def __call__(
        self,
        q: Tensor,
        k_cache: Tensor,
        v_cache: Tensor,
        block_tables: Tensor,
        seq_lens: Tensor,
        scale: float,
        alibi_slopes: None = None,
    ) -> Tensor:
        if self.tables is None or self.tables.data_ptr() != block_tables.data_ptr():
            self.tables = block_tables  # held, so that no other tensor gets its address
            self.rows = self.rows_of(block_tables, k_cache.shape[1])
            self.mask, self.longest = mask_of(seq_lens), int(seq_lens.max())
        k, v = map(self.gather, (k_cache, v_cache), self.memory)
        return self.attention(q, k, v, self.mask, scale)

    def select(self, rows: Tensor, memory: Tensor) -> Tensor:
        """rows [number of rows, row size] of the cache -> those of this step, one after another."""
        shape = (len(self.rows), rows.shape[1])
        out = memory[: shape[0] * shape[1]].view(shape)
        return torch.index_select(rows, 0, self.rows, out=out)

    def rows_of(self, block_tables: Tensor, num_heads: int) -> Tensor:
        raise NotImplementedError

    def gather(self, cache: Tensor, memory: Tensor) -> Tensor:
        """[num_seqs, num_heads, longest, head_size]"""
        raise NotImplementedError


class GatherBlocks(Gather):
    """From the plain layout, block-major: a row is what one block has of one head."""

    def rows_of(self, block_tables: Tensor, num_heads: int) -> Tensor:
        first = block_tables.long()[:, None] * num_heads
        return (first + torch.arange(num_heads)[:, None]).flatten()

    def gather(self, cache: Tensor, memory: Tensor) -> Tensor:
        _, num_heads, _, head_size = cache.shape
        found = self.select(cache.flatten(2).flatten(0, 1), memory)
        return found.view(len(self.tables), num_heads, -1, head_size)[:, :, : self.longest]


class GatherTokens(Gather):
    """From a token-major cache: a row is a whole block. Attention reads a transposed view."""

    def rows_of(self, block_tables: Tensor, num_heads: int) -> Tensor:
        return block_tables.long().flatten()

    def gather(self, cache: Tensor, memory: Tensor) -> Tensor:
        _, num_heads, _, head_size = cache.shape
        found = self.select(cache.transpose(1, 2).flatten(1), memory)
        found = found.view(len(self.tables), -1, num_heads, head_size)
        return found[:, : self.longest].transpose(1, 2)


def gathering(kind: type[Gather], attention: Attention) -> Callable[[Runner], Runner]:
    """Of the engine's Runner with the plain layout: the same with such a gather as its stage."""

    def change(runner: Runner) -> Runner:
        layout = runner.cache.layout
        row_size = layout.num_kv_heads * layout.block_size * layout.head_size
        # A row for every block: nothing is shared, so no batch names more.
        gather = kind(attention, layout.num_blocks, row_size)
        runner.stage = replace(runner.stage, at=gather)
        for caches in (runner.cache.k, runner.cache.v):
            for index, cache in enumerate(caches):
                cache.zero_()  # a masked place has weight 0; times NaN that would be NaN
                if kind is GatherTokens:
                    caches[index] = cache.transpose(1, 2).contiguous().transpose(1, 2)
        return runner

    return change


@dataclass(frozen=True)
class Way:
    """words: for tables and figures. stage: of the engine. runner: what takes the place of its
    Runner."""

    words: str
    stage: str = "cpu"
    runner: Callable | None = None


WAYS = {
    "block_lists": Way(
        "blocks copied by a loop in Python",
        runner=lambda runner: BlockLists(
            runner.model, runner.cache.layout.num_blocks, runner.cache.layout.block_size
        ),
    ),
    "contiguous": Way(
        "contiguous pasts, cat and stack", runner=lambda runner: ContiguousPasts(runner.model)
    ),
    "gather_blocks_sdpa": Way(
        "gather, block-major, sdpa", runner=gathering(GatherBlocks, attend_padded)
    ),
    "gather_blocks_matmul": Way(
        "gather, block-major, matmul", runner=gathering(GatherBlocks, matmul_padded)
    ),
    "gather_tokens_sdpa": Way(
        "gather, token-major, sdpa", runner=gathering(GatherTokens, attend_padded)
    ),
    "gather_tokens_matmul": Way(
        "gather, token-major, matmul", runner=gathering(GatherTokens, matmul_padded)
    ),
    "paged_gather": Way("paged_gather", stage="paged_gather"),
    "paged_online": Way("paged_online", stage="paged_online"),
    "cpu": Way("cpu", stage="cpu"),
    "no_attention": Way("no attention at all", runner=lambda runner: NoAttention(runner.model)),
}
GATHERS = tuple(name for name in WAYS if name.startswith("gather_"))
BEFORE_PAGING = ("block_lists", "contiguous")


def left_out() -> dict[str, str]:
    """Paged stages that are not measured, and why."""
    simulated = dict.fromkeys(SIMULATED, "simulated: its time says nothing about the kernel")
    paged = {name for name, stage in STAGES.items() if stage.layout}
    return {name: why for name, why in (simulated | NOT_ON_A_CPU).items() if name in paged}
