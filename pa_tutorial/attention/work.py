"""Counting what attention costs: operations with PyTorch's counter, bytes from the tensors."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from pa_tutorial.arguments import require_bool, require_heads, require_type, whole_number
from pa_tutorial.attention.cached import KVCache, cached_attention
from pa_tutorial.attention.tiny_lm import TinyLM
from pa_tutorial.private_names import tree_leaves


def count_flops(run: Callable[[], object]) -> int:
    """Floating-point operations in the matrix products of `run`; a multiply-add counts as two."""
    from torch.utils.flop_counter import FlopCounterMode  # imports Triton: only if asked for

    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        run()
    return counter.get_total_flops()


PICKING = {Tensor.__getitem__, Tensor.index_select, torch.index_select, Tensor.gather, torch.gather}


class TensorsMade(TorchFunctionMode):
    """Counts what torch reads and creates inside `with TensorsMade(k_cache, v_cache) as made:`.

    sizes       bytes of every new tensor, in order; views don't count
    bytes_read  bytes read from the given tensors: what an index picks, otherwise all of the view
                that an operation takes
    """

    def __init__(self, *watched: Tensor) -> None:
        super().__init__()
        self.watched = {_memory(tensor) for tensor in watched}
        self.sizes: list[int] = []
        self.bytes_read = 0

    def __torch_function__(
        self, function: Callable, types: object, args: tuple = (), kwargs: dict | None = None
    ) -> object:
        result = function(*args, **(kwargs or {}))
        inputs = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
        read = sum(x.nbytes for x in inputs if _memory(x) in self.watched)
        known = {_memory(x) for x in inputs}
        for tensor in tree_leaves(result):
            if not isinstance(tensor, Tensor) or (memory := _memory(tensor)) in self.watched:
                continue
            self.bytes_read += min(read, tensor.nbytes) if function in PICKING else read
            if memory not in known:
                self.sizes.append(tensor.nbytes)
        return result


def _memory(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def flops_per_token(model: TinyLM, num_tokens: int, use_cache: bool) -> list[int]:
    """What the model computes for each next token of a sequence.

    returns  [num_tokens]: entry t is the work for the token after the first t + 1
    """
    require_type(isinstance(model, TinyLM), "model", model, "a TinyLM")
    num_tokens = whole_number("num_tokens", num_tokens, 1, model.config.max_len)
    require_bool("use_cache", use_cache)
    tokens = torch.zeros(num_tokens, dtype=torch.int64)
    caches = model.new_caches(num_tokens) if use_cache else None
    counts = []
    for end in range(1, num_tokens + 1):
        start = end - 1 if use_cache else 0
        counts.append(count_flops(lambda start=start, end=end: model(tokens[start:end], caches)))
    return counts


def attention_flops_and_bytes(
    num_new_tokens: int,
    seq_len: int,
    num_heads: int,
    num_kv_heads: int,
    head_size: int,
    dtype: torch.dtype = torch.float16,
) -> tuple[int, int]:
    """One attention call of the newest tokens over a cache: (operations, bytes that must move).

    The bytes are q, K, V and out, each moved once, the least that any kernel can do.
    Operations on masked scores count too, though a kernel may skip them.
    """
    require_heads(num_heads, num_kv_heads)
    seq_len = whole_number("seq_len", seq_len, least=1)
    num_new_tokens = whole_number("num_new_tokens", num_new_tokens, 1, seq_len)
    head_size = whole_number("head_size", head_size, least=1)
    cache = KVCache(seq_len, num_kv_heads, head_size, dtype)
    cache.append(*torch.zeros(2, seq_len, num_kv_heads, head_size, dtype=dtype))
    q = torch.zeros(num_new_tokens, num_heads, head_size, dtype=dtype)
    flops = count_flops(lambda: cached_attention(q, cache.keys, cache.values, head_size**-0.5))
    return flops, cache.num_bytes + 2 * q.nbytes  # out is as large as q
