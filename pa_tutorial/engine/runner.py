"""One step of the model over the paged cache: write K and V, then prefill and decode."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from pa_tutorial.arguments import require, require_type
from pa_tutorial.attention.backend import Backend, Launch
from pa_tutorial.attention.step import DecodeStep, QuantizedStep, require_blocks_and_lengths
from pa_tutorial.engine.batch import Batch
from pa_tutorial.paging.kv_cache import PagedKVCache
from pa_tutorial.paging.layouts import DTYPES, LAYOUTS
from pa_tutorial.paging.quantization import FLOAT8

# The names that vLLM has for them.
KV_CACHE_DTYPES = dict(zip(("fp8", "fp8_e4m3", "fp8_e5m2"), (FLOAT8[0], *FLOAT8), strict=True))


class ModelConfig(Protocol):
    """The sizes of a model that the engine needs."""

    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_size: int
    vocab_size: int
    max_len: int
    scale: float

    def alibi_slopes(self) -> Tensor | None: ...


class Model(Protocol):
    """A decoder that calls the caller's attention, such as TinyLM and Llama.

    run(tokens, positions, attend, rows=…) calls attend(layer, q, k, v) in every layer and returns
    the scores after the given rows, [num_rows, vocab_size].
    """

    config: ModelConfig
    run: Callable[..., Tensor]

    def parameters(self) -> object: ...


def backend_here(backend: Backend) -> Backend:
    """The backend. TypeError if it isn't one, ValueError if it can't run on this machine."""
    allowed = "a Backend, such as attention.paged.online_backend"
    require_type(isinstance(backend, Backend), "backend", backend, allowed)
    if why := backend.why_absent():
        raise ValueError(f"backend is {type(backend).__name__}, which cannot run here: {why}")
    return backend


def cache_dtype(name: str | None, model_dtype: torch.dtype) -> torch.dtype:
    """The dtype of the cache: see Runner. ValueError for an unknown name, and for a model whose K
    and V can't be stored in 8 bits."""
    if name is None:
        return model_dtype
    allowed = f"None, as the model, or one of {', '.join(KV_CACHE_DTYPES)}"
    is_known = isinstance(name, str) and name in KV_CACHE_DTYPES
    require(is_known, "kv_cache_dtype", repr(name), allowed)
    allowed = f"None for a model in {model_dtype}: it must be in float32, float16 or bfloat16"
    require(model_dtype in DTYPES, "kv_cache_dtype", repr(name), allowed)
    return KV_CACHE_DTYPES[name]


def prefill_attention(
    q: Tensor, k: Tensor, v: Tensor, scale: float, alibi_slopes: Tensor | None = None
) -> Tensor:
    """The same as `cached_attention`, by torch's fused kernel, which doesn't store the scores.

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


@dataclass
class DecodeLaunches:
    """The decode steps of all layers, prepared together: one launch per layer, over the same q,
    block tables and lengths, which are overwritten in each step.

    step  of the first layer; the launches own its q, block tables and lengths
    """

    step: DecodeStep
    launches: list[Launch]

    def refill(self, tables: Tensor, seq_lens: Tensor) -> bool:
        """Copy in a step's inputs; False if the shapes differ. ValueError for a bad step."""
        step = self.step
        if tables.shape != step.block_tables.shape:
            return False
        require_blocks_and_lengths(tables, seq_lens, len(step.k_cache), step.block_size)
        step.block_tables.copy_(tables)
        step.seq_lens.copy_(seq_lens)
        return True

    def run(self, layer: int, q: Tensor) -> Tensor:
        """The attention of one layer; the result is overwritten by the layer's next run."""
        own = self.step.q
        same = (q.shape, q.dtype) == (own.shape, own.dtype)
        require(same, "q", (q.shape, q.dtype), (own.shape, own.dtype))
        own.copy_(q)
        return self.launches[layer].run()


class Runner:
    """The model, the cache tensors, and the attention between them.

    backend         runs the decode steps, and declares the layout of the cache
    kv_cache_dtype  None: the cache has the dtype of the model; "fp8": float8_e4m3fn, "fp8_e5m2":
                    float8_e5m2, both with scales of 1

    Raises TypeError or ValueError for impossible arguments, and if the backend can't run here or
    with these sizes, which a trial run checks.
    """

    def __init__(
        self,
        model: Model,
        backend: Backend,
        num_blocks: int,
        block_size: int,
        kv_cache_dtype: str | None = None,
    ) -> None:
        require_type(hasattr(model, "config"), "model", model, "a Model, such as TinyLM")
        config = model.config
        self.model = model
        self.backend = backend_here(backend)
        weight = next(iter(model.parameters()))
        self.device, self.dtype = weight.device, weight.dtype
        dtype = cache_dtype(kv_cache_dtype, self.dtype)
        sizes = (num_blocks, config.num_kv_heads, config.head_size, block_size, dtype)
        layout = LAYOUTS[self.backend.layout](*sizes)
        self.cache = PagedKVCache(layout, config.num_layers, self.device)
        slopes = config.alibi_slopes()
        self.slopes = None if slopes is None else slopes.to(self.device)
        self.prepared: DecodeLaunches | None = None
        try:
            self._try_backend()
        except ValueError as error:
            given = "" if kv_cache_dtype is None else f" and kv_cache_dtype {kv_cache_dtype!r}"
            raise ValueError(
                f"{type(backend).__name__} can't run with this model{given}: {error}"
            ) from error

    def _try_backend(self) -> None:
        """Run one query over one all-zero token, so that unsupported sizes fail now."""
        one_block = replace(self.cache.layout, num_blocks=1)
        caches = [torch.zeros_like(cache, device=self.device) for cache in one_block.empty()]
        one = torch.ones(1, dtype=torch.int32, device=self.device)
        step = self._step(self._empty_q(1).zero_(), *caches, one[:, None] - 1, one)
        self.backend.prepare(step).run()

    def _step(self, *tensors: Tensor) -> DecodeStep:
        """The decode step of q, k_cache, v_cache, block tables and lengths."""
        values = (*tensors, self.model.config.scale, self.slopes)
        if self.cache.scales[0] is None:
            return DecodeStep(*values)
        return QuantizedStep(*values, *self.cache.scales)

    def _empty_q(self, num_seqs: int) -> Tensor:
        size = num_seqs, self.model.config.num_heads, self.model.config.head_size
        return torch.empty(size, dtype=self.dtype, device=self.device)

    # Not inference_mode: with it, a layer that is split over ranks costs 0.2 s more for every new
    # number of tokens (torch then finds out by trial how the parts of a product are split).
    @torch.no_grad()
    def run(self, batch: Batch) -> Tensor:
        """Compute a batch, and leave K and V of its tokens in the cache.

        returns  [num_sampled, vocab_size] float32: scores for the token after each of last_rows
        """
        require_type(isinstance(batch, Batch), "batch", batch, "a Batch")
        batch = batch.to(self.device)
        self.cache.copy_blocks(batch.copies)
        places = self.cache.places(batch.slot_mapping)
        decode = self._decode_launches(batch) if batch.num_decodes else None

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            # Write everything first: a sequence may read what another writes in the same step.
            self.cache.write(layer, k, v, places)
            return self.attention(layer, q, batch, decode)

        scores = self.model.run(batch.input_ids, batch.positions, attend, rows=batch.last_rows)
        return scores.float()

    def _decode_launches(self, batch: Batch) -> DecodeLaunches:
        """The launches for the sequences of a batch that decode.

        If a backend's launches can be reused, they are prepared once for all steps of one shape.
        """
        tables, seq_lens = (x[: batch.num_decodes] for x in (batch.block_tables, batch.seq_lens))
        reusable = self.prepared if self.backend.reusable else None
        if reusable is None or not reusable.refill(tables, seq_lens):
            q, caches = self._empty_q(len(tables)), zip(self.cache.k, self.cache.v, strict=True)
            own = tables.clone(), seq_lens.clone()
            steps = [self._step(q, k, v, *own) for k, v in caches]
            self.prepared = DecodeLaunches(steps[0], list(map(self.backend.prepare, steps)))
        return self.prepared

    def attention(
        self, layer: int, q: Tensor, batch: Batch, decode: DecodeLaunches | None
    ) -> Tensor:
        """Decode with the backend, all sequences in one launch, and prefill one sequence at a time.

        q        [num_tokens, num_heads, head_size]
        returns  the same shape
        """
        first, scale = batch.num_decodes, self.model.config.scale
        outs = [decode.run(layer, q[:first])] if decode else []
        for sequence in range(batch.num_decodes, len(batch.query_lens)):
            last = first + batch.query_lens[sequence]
            seq_len = int(batch.seq_lens[sequence])
            # Over cached and new tokens: the blocks contain both by now.
            k, v = self.cache.read(layer, batch.block_tables[sequence], seq_len)
            k, v = k.to(q.dtype), v.to(q.dtype)  # from an 8-bit cache they come as float32
            outs.append(prefill_attention(q[first:last], k, v, scale, self.slopes))
            first = last
        return outs[0] if len(outs) == 1 else torch.cat(outs)
