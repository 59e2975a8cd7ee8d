"""TinyLM with its K and V in blocks: many sequences, one pool, the same code for prefill."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from pa_tutorial.arguments import require
from pa_tutorial.attention.paged import flatten_queries, paged_online
from pa_tutorial.attention.tiny_lm import TinyLM, require_below
from pa_tutorial.paging.allocator import BlockAllocator
from pa_tutorial.paging.block_table import BlockTable, padded_block_tables
from pa_tutorial.paging.kv_cache import PagedKVCache
from pa_tutorial.paging.layouts import LAYOUTS


class PagedTinyLM:
    """Steps of a TinyLM over sequences whose K and V share one pool of blocks.

    allocator  the pool; with a PrefixCachingAllocator, known prefixes aren't computed again
    attention  any stage that reads a paged cache in this layout
    """

    def __init__(
        self,
        model: TinyLM,
        allocator: BlockAllocator,
        block_size: int,
        layout: str = "plain",
        attention: Callable[..., Tensor] = paged_online,
    ) -> None:
        require(layout in LAYOUTS, "layout", repr(layout), f"one of {tuple(LAYOUTS)}")
        config = model.config
        self.model = model
        self.attention = attention
        self.allocator = allocator
        sizes = (allocator.num_blocks, config.num_kv_heads, config.head_size, block_size)
        self.cache = PagedKVCache(LAYOUTS[layout](*sizes), config.num_layers)

    def new_sequence(self) -> BlockTable:
        return BlockTable(self.allocator, self.cache.layout.block_size)

    def step(self, tables: Sequence[BlockTable], new_tokens: Sequence[Tensor]) -> Tensor:
        """Append tokens to sequences, a prompt or one token each; predict what follows.

        new_tokens  one tensor per sequence, [num_new] int64
        returns     [num_seqs, vocab_size]: scores for the token after the last one

        Before any table changes, raises ValueError for a bad token or table, and OutOfBlocks if the
        pool could run out (assuming that no block is shared or found in a prefix cache).
        """
        self._require(tables, new_tokens)
        slots, query_lens = [], []
        for table, tokens in zip(tables, new_tokens, strict=True):
            appended = table.append(tokens.tolist())
            self.cache.copy_blocks(appended.copies)
            slots += appended.slots[appended.num_cached :]
            query_lens.append(len(tokens) - appended.num_cached)
        seq_lens = torch.tensor([table.num_tokens for table in tables], dtype=torch.int32)
        queries = flatten_queries(padded_block_tables(tables), seq_lens, torch.tensor(query_lens))
        tokens = torch.cat([new[-n:] for new, n in zip(new_tokens, query_lens, strict=True)])

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            self.cache.write(layer, k, v, torch.tensor(slots))
            k_cache, v_cache = self.cache.k[layer], self.cache.v[layer]
            config = self.model.config
            return self.attention(
                q, k_cache, v_cache, *queries, config.scale, config.alibi_slopes()
            )

        positions = queries[1].long() - 1
        scores = self.model.run(tokens, positions, attend)
        return scores[torch.tensor(query_lens).cumsum(0) - 1]

    def _require(self, tables: Sequence[BlockTable], new_tokens: Sequence[Tensor]) -> None:
        require(len(tables) > 0, "tables", list(tables), "at least one sequence")
        num_blocks = 0
        for index, (table, tokens) in enumerate(zip(tables, new_tokens, strict=True)):
            if table.allocator is not self.allocator:
                raise ValueError(f"tables[{index}] is from another pool; use new_sequence()")
            if any(table is other for other in tables[:index]):
                raise ValueError(f"tables[{index}] is in the batch twice")
            first = table.num_tokens
            self.model.require_tokens(tokens, torch.arange(first, first + tokens.numel()))
            require_below("tokens", tokens, self.model.config.vocab_size)
            num_blocks += table.blocks_needed(len(tokens))
        self.allocator.require_free(num_blocks)

    @torch.inference_mode()
    def generate(self, prompts: Sequence[Tensor], num_tokens: int) -> list[Tensor]:
        """Append the likeliest next token to each prompt, `num_tokens` times, all in one batch.

        returns  one tensor per prompt, [num_tokens] int64; the blocks are freed
        """
        tables = [self.new_sequence() for _ in prompts]
        new, generated = list(prompts), [prompt[:0] for prompt in prompts]
        try:
            for _ in range(num_tokens):
                new = list(self.step(tables, new).argmax(dim=-1).split(1))
                generated = [torch.cat(pair) for pair in zip(generated, new, strict=True)]
        finally:
            for table in tables:
                table.free()
        return generated
