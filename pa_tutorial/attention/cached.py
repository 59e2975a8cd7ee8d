"""Attention with a contiguous KV cache: keep K and V, and compute only what is new."""

from math import prod

import torch
from torch import Tensor

from pa_tutorial.arguments import (
    require,
    require_dtype,
    require_floats,
    require_memory,
    require_shape,
    whole_number,
)
from pa_tutorial.attention.full import repeat_kv_heads, require_attention_inputs


class KVCache:
    """K and V of one sequence in one layer, in memory reserved for `max_len` tokens.

    keys, values  [seq_len, num_kv_heads, head_size]: views of the tokens written so far

    The rest of the memory holds NaN,
    so that reading an unused place can't go unnoticed.
    """

    def __init__(
        self, max_len: int, num_kv_heads: int, head_size: int, dtype: torch.dtype = torch.float32
    ) -> None:
        sizes = {"max_len": max_len, "num_kv_heads": num_kv_heads, "head_size": head_size}
        shape = tuple(whole_number(name, size, least=1) for name, size in sizes.items())
        require_dtype(dtype)
        require_memory(2 * prod(shape) * dtype.itemsize, **sizes)
        self._keys = torch.full(shape, float("nan"), dtype=dtype)
        self._values = torch.full(shape, float("nan"), dtype=dtype)
        self.seq_len = 0

    @property
    def keys(self) -> Tensor:
        return self._keys[: self.seq_len]

    @property
    def values(self) -> Tensor:
        return self._values[: self.seq_len]

    @property
    def num_bytes(self) -> int:
        """Bytes of K and V that hold tokens (without the unused reservation)."""
        return self.keys.nbytes + self.values.nbytes

    def require_room(self, num_new_tokens: int, name: str = "num_new_tokens") -> None:
        """Raise ValueError, with this name for the number, unless so many tokens fit."""
        number, room = whole_number(name, num_new_tokens, least=0), len(self._keys) - self.seq_len
        require(number <= room, name, number, f"at most {room}: the cache has room for {room} more")

    def append(self, k: Tensor, v: Tensor) -> None:
        """Add the K and V of new tokens, each [num_new_tokens, num_kv_heads, head_size].

        Raises TypeError or ValueError, before anything is written, unless both are tensors of
        matching shapes and dtypes that fit into the reserved memory.
        """
        require_floats(k=k, v=v)
        new = [k.shape[0] if k.dim() else 1, *self._keys.shape[1:]]
        for name, tensor in (("k", k), ("v", v)):
            require_shape(list(tensor.shape) == new, name, tensor, f"it must be {new}")
            if tensor.dtype != self._keys.dtype:
                raise ValueError(f"{name} is {tensor.dtype}; it must be {self._keys.dtype}")
        self.require_room(len(k), "len(k)")
        start, end = self.seq_len, self.seq_len + len(k)
        self._keys[start:end] = k
        self._values[start:end] = v
        self.seq_len = end


def cached_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float,
    alibi_slopes: Tensor | None = None,
    probe: dict[str, Tensor] | None = None,
) -> Tensor:
    """Attention of the newest tokens over everything in the cache. Stage `kv_cache`.

    q             [num_new_tokens, num_heads, head_size]   the last tokens of the sequence:
                  the whole prompt at prefill, one token at decode
    k, v          [seq_len, num_kv_heads, head_size]       all tokens, including the new ones
    scale         usually head_size ** -0.5
    alibi_slopes  [num_heads]; adds slope * (j - i) to the score of query i and key j
    probe         receives `qk` and `logits`, both [num_heads, num_new_tokens, seq_len]
    returns       [num_new_tokens, num_heads, head_size], in the dtype of q

    Raises TypeError or ValueError for arguments of the wrong type or with shapes that don't match.
    """
    require_attention_inputs(q, k, v, scale, alibi_slopes)
    num_new_tokens, num_heads, _ = q.shape  # NEW
    seq_len = k.shape[0]  # NEW
    k, v = repeat_kv_heads(k, num_heads), repeat_kv_heads(v, num_heads)

    # qk[h, i, j] = scale * (q_i . k_j)
    qk = scale * torch.einsum("ihd,jhd->hij", q.float(), k.float())
    # The queries are the last positions of the sequence.
    first = seq_len - num_new_tokens  # NEW
    i = torch.arange(first, seq_len, device=q.device)[:, None]  # NEW
    j = torch.arange(seq_len, device=q.device)[None, :]
    if alibi_slopes is not None:
        qk = qk + alibi_slopes.float()[:, None, None] * (j - i)
    # At decode (one query, the last position) this mask hides nothing.
    qk = qk.masked_fill(j > i, float("-inf"))

    # logits[h, i, j] = exp(qk_j - max) / sum_j exp(qk_j - max)
    logits = torch.exp(qk - qk.amax(dim=-1, keepdim=True))
    logits = logits / logits.sum(dim=-1, keepdim=True)
    # out[i] = sum_j logits[i, j] * v_j
    out = torch.einsum("hij,jhd->ihd", logits, v.float())
    if probe is not None:
        probe.update(qk=qk, logits=logits)
    return out.to(q.dtype)
