"""One step of the model over the paged cache: write K and V, then prefill and decode."""

from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from pa_tutorial.arguments import require
from pa_tutorial.attention.step import require_blocks_and_lengths
from pa_tutorial.engine.batch import Batch
from pa_tutorial.paging.kv_cache import PagedKVCache
from pa_tutorial.paging.layouts import LAYOUTS
from pa_tutorial.walk.ladder import STAGES, Stage, load, stage_named


class ModelConfig(Protocol):
    """The sizes that the engine asks a model for."""

    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_size: int
    vocab_size: int
    max_len: int
    scale: float

    def alibi_slopes(self) -> Tensor | None: ...


class Model(Protocol):
    """A decoder with its attention open: TinyLM and Llama are such models.

    run(tokens, positions, attend, rows=…) calls attend(layer, q, k, v) in every layer and returns
    the scores after the given rows, [num_rows, vocab_size].
    """

    config: ModelConfig
    run: Callable[..., Tensor]

    def parameters(self) -> object: ...


def paged_stage(name: str) -> Stage:
    """The stage of that name; ValueError if it cannot decode over blocks on this machine."""
    stage = stage_named(name)
    if stage.layout is None:
        paged = ", ".join(other.name for other in STAGES.values() if other.layout)
        raise ValueError(f"stage is {name!r}, which reads no blocks; it must be one of {paged}")
    if why := stage.why_absent():
        raise ValueError(f"stage is {name!r}, which cannot run here: {why}")
    return stage


def prefill_attention(
    q: Tensor, k: Tensor, v: Tensor, scale: float, alibi_slopes: Tensor | None = None
) -> Tensor:
    """What `cached_attention` computes, by torch's fused kernel, which keeps no score of a pair.

    q        [num_new_tokens, num_heads, head_size]   the last tokens of the sequence
    k, v     [seq_len, num_kv_heads, head_size]       all tokens, the new ones included
    returns  [num_new_tokens, num_heads, head_size]
    """
    num_new_tokens, seq_len = len(q), len(k)
    mask = None
    if alibi_slopes is not None or num_new_tokens < seq_len:
        i = torch.arange(seq_len - num_new_tokens, seq_len, device=q.device)[:, None]
        j = torch.arange(seq_len, device=q.device)
        mask = j <= i
        if alibi_slopes is not None:
            bias = alibi_slopes.to(q.dtype)[:, None, None] * (j - i)
            mask = bias.masked_fill(~mask, float("-inf"))
    q, k, v = (x.transpose(0, 1)[None] for x in (q, k, v))
    options = {"is_causal": mask is None, "scale": scale, "enable_gqa": True}
    return scaled_dot_product_attention(q, k, v, mask, **options)[0].transpose(0, 1)


class Prepared:
    """Decode steps of one shape, checked and allocated once; each step fills in its numbers."""

    def __init__(
        self, cache: PagedKVCache, q: Tensor, tables: Tensor, seq_lens: Tensor, *options: object
    ) -> None:
        self.cache, self.q, self.tables, self.seq_lens = cache, q, tables, seq_lens
        prepare = load("kernels.cpu_launch:prepare_cpu")
        layers = zip(cache.k, cache.v, strict=True)
        self.launches = [prepare(q, k, v, tables, seq_lens, *options) for k, v in layers]

    def fill(self, cache: PagedKVCache, tables: Tensor, seq_lens: Tensor) -> bool:
        """Take the numbers of a step; False if it has another shape. ValueError for a bad one."""
        if cache is not self.cache or tables.shape != self.tables.shape:
            return False
        layout = cache.layout
        require_blocks_and_lengths(tables, seq_lens, layout.num_blocks, layout.block_size)
        self.tables.copy_(tables)
        self.seq_lens.copy_(seq_lens)
        return True

    def decode(self, layer: int, q: Tensor) -> Tensor:
        same = (q.shape, q.dtype) == (self.q.shape, self.q.dtype)
        require(same, "q", (q.shape, q.dtype), (self.q.shape, self.q.dtype))
        self.q.copy_(q)
        return self.launches[layer].run()


class Runner:
    """The model, the cache tensors, and the attention between them.

    stage  a paged stage of the ladder, by name: it does the decode steps, and declares in which
           layout the cache is kept

    Raises ValueError if the stage cannot run here, or not with these sizes: it is tried once.
    """

    def __init__(self, model: Model, stage: str, num_blocks: int, block_size: int) -> None:
        config = model.config
        self.model = model
        self.stage = paged_stage(stage)
        weight = next(iter(model.parameters()))
        self.device = weight.device
        sizes = (num_blocks, config.num_kv_heads, config.head_size, block_size, weight.dtype)
        layout = LAYOUTS[self.stage.layout](*sizes)
        self.cache = PagedKVCache(layout, config.num_layers, self.device)
        slopes = config.alibi_slopes()
        self.slopes = None if slopes is None else slopes.to(self.device)
        self.prepared: Prepared | None = None
        self._try_stage()

    def _try_stage(self) -> None:
        """One query over one token that is all zero, so that what does not fit shows now."""
        config, layout = self.model.config, self.cache.layout
        shape = (1, config.num_heads, config.head_size)
        one_block = replace(layout, num_blocks=1)
        caches = [torch.zeros_like(cache, device=self.device) for cache in one_block.empty()]
        one = torch.ones(1, dtype=torch.int32, device=self.device)
        q = torch.zeros(shape, dtype=layout.dtype, device=self.device)
        self.stage.function(q, *caches, one[:, None] - 1, one, config.scale, self.slopes)

    # Not inference_mode: there, a layer that is cut over ranks costs 0.2 s more for every number of
    # tokens that is new (torch then finds out by trial how the parts of a product are cut).
    @torch.no_grad()
    def run(self, batch: Batch) -> Tensor:
        """Compute a batch; K and V of its tokens are in the cache afterwards.

        returns  [num_sampled, vocab_size] float32: scores for the token after each of last_rows
        """
        batch = batch.to(self.device)
        self.cache.copy_blocks(batch.copies)
        places, self.decode = self.cache.places(batch.slot_mapping), self._decode_of(batch)

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            # All of the step first: a sequence may read what another writes in the same step.
            self.cache.write(layer, k, v, places)
            return self.attention(layer, q, batch)

        scores = self.model.run(batch.input_ids, batch.positions, attend, rows=batch.last_rows)
        return scores.float()

    def _decode_of(self, batch: Batch) -> Callable[[int, Tensor], Tensor]:
        """decode(layer, q) -> out, for the sequences of a batch that decode.

        The stage `cpu` is prepared for all steps of the same shape.
        """
        tables, seq_lens = (x[: batch.num_decodes] for x in (batch.block_tables, batch.seq_lens))
        config, options = self.model.config, (self.model.config.scale, self.slopes)
        if self.stage.at != STAGES["cpu"].at or not batch.num_decodes:
            function, cache = self.stage.function, self.cache
            return lambda i, q: function(q, cache.k[i], cache.v[i], tables, seq_lens, *options)
        if self.prepared is None or not self.prepared.fill(self.cache, tables, seq_lens):
            shape = (len(tables), config.num_heads, config.head_size)
            q = torch.zeros(shape, dtype=self.cache.layout.dtype)
            self.prepared = Prepared(self.cache, q, tables, seq_lens, *options)
        return self.prepared.decode

    def attention(self, layer: int, q: Tensor, batch: Batch) -> Tensor:
        """Decode by the stage, all sequences in one call; prefill sequence by sequence.

        q        [num_tokens, num_heads, head_size]
        returns  the same shape
        """
        first, scale = batch.num_decodes, self.model.config.scale
        outs = [self.decode(layer, q[:first])] if first else []
        for sequence in range(batch.num_decodes, len(batch.query_lens)):
            last = first + batch.query_lens[sequence]
            seq_len = int(batch.seq_lens[sequence])
            # Over what is cached and what is new: both are in the blocks by now.
            k, v = self.cache.read(layer, batch.block_tables[sequence], seq_len)
            outs.append(prefill_attention(q[first:last], k, v, scale, self.slopes))
            first = last
        return outs[0] if len(outs) == 1 else torch.cat(outs)
