"""TinyLM with its K and V in blocks: many sequences, one pool, the same code for prefill."""

from collections.abc import Callable, Hashable, Sequence

import torch
from torch import Tensor

from pa_tutorial.arguments import require
from pa_tutorial.attention.paged import flatten_queries, paged_online
from pa_tutorial.attention.tiny_lm import TinyLM, require_below
from pa_tutorial.paging.kv_cache import PagedKVCache
from pa_tutorial.paging.layouts import LAYOUTS
from pa_tutorial.paging.pages import Pages


class PagedTinyLM:
    """Steps of a TinyLM over sequences whose K and V share one pool of blocks.

    pages      the memory manager; known prefixes that it finds aren't computed again
    attention  any stage that reads a paged cache in this layout
    """

    def __init__(
        self,
        model: TinyLM,
        pages: Pages,
        layout: str = "plain",
        attention: Callable[..., Tensor] = paged_online,
    ) -> None:
        require(layout in LAYOUTS, "layout", repr(layout), f"one of {tuple(LAYOUTS)}")
        config = model.config
        self.model = model
        self.attention = attention
        self.pages = pages
        self.seq_lens: dict[Hashable, int] = {}  # how many tokens of each sequence are in the cache
        sizes = (pages.num_blocks, config.num_kv_heads, config.head_size, pages.block_size)
        self.cache = PagedKVCache(LAYOUTS[layout](*sizes), config.num_layers)

    def step(self, names: Sequence[Hashable], new_tokens: Sequence[Tensor]) -> Tensor:
        """Append tokens to sequences, a prompt or one token each; predict what follows.

        names       of the sequences, each once; a new name starts one
        new_tokens  one tensor per sequence, [num_new] int64
        returns     [num_seqs, vocab_size]: scores for the token after the last one

        Raises ValueError for a bad token, before anything changes, and OutOfBlocks.
        """
        for name, tokens in zip(names, new_tokens, strict=True):
            first = self.seq_lens.get(name, 0)
            self.model.require_tokens(tokens, torch.arange(first, first + tokens.numel()))
            require_below("tokens", tokens, self.model.config.vocab_size)
        slots, query_lens = [], []
        for name, tokens in zip(names, new_tokens, strict=True):
            appended = self.pages.append(name, tokens.tolist())
            self.seq_lens[name] = self.seq_lens.get(name, 0) + len(tokens)
            self.cache.copy_blocks(appended.copies)
            slots += appended.slots[appended.num_cached :]
            query_lens.append(len(tokens) - appended.num_cached)
        seq_lens = torch.tensor([self.seq_lens[name] for name in names], dtype=torch.int32)
        queries = flatten_queries(self.pages.tables(names), seq_lens, torch.tensor(query_lens))
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

    def free(self, name: Hashable) -> None:
        """End a sequence."""
        self.pages.free(name)
        del self.seq_lens[name]

    @torch.inference_mode()
    def generate(self, prompts: Sequence[Tensor], num_tokens: int) -> list[Tensor]:
        """Append the likeliest next token to each prompt, `num_tokens` times, all in one batch.

        returns  one tensor per prompt, [num_tokens] int64; the blocks are freed
        """
        names = list(range(len(prompts)))
        new, generated = list(prompts), [prompt[:0] for prompt in prompts]
        try:
            for _ in range(num_tokens):
                new = list(self.step(names, new).argmax(dim=-1).split(1))
                generated = [torch.cat(pair) for pair in zip(generated, new, strict=True)]
        finally:
            for name in names:
                if name in self.seq_lens:
                    self.free(name)
        return generated
