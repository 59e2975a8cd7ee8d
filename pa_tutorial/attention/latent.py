"""Attention over a latent cache (multi-head latent attention, MLA): one short row for each token.

A layer keeps of a token, for all heads together,

    c [latent_size]  the latent, from which k and v of every head are made
    r [rope_size]    a piece of key that carries the position, already turned (RoPE)

and head h means by it

    k_h = [w_k[h] @ c, r]        v_h = w_v[h] @ c        its query is q_h = [nope, rope]

Two ways to the same output:

    expanded  make k and v of every token and head, then attend as always
    absorbed  nope . (w_k[h] @ c) = (nope @ w_k[h]) . c: move w_k to the query, attend to the rows
              themselves, and apply w_v once, to the result

Sources: DeepSeek-AI, "DeepSeek-V2" (arXiv:2405.04434, May 2024), section 2.1. The two ways: vLLM,
vllm/v1/attention/backends/mla/common.py, commit 00a817ad.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from pa_tutorial.arguments import require
from pa_tutorial.attention.paged import paged_online


def require_latent(q: Tensor, row_size: int, w_k: Tensor, w_v: Tensor) -> None:
    """Raise ValueError, naming the argument, unless the sizes fit together.

    q         [num_seqs, num_heads, nope_size + rope_size]
    row_size  latent_size + rope_size, of the cache
    w_k, w_v  [num_heads, nope_size, latent_size], [num_heads, value_size, latent_size]
    """
    for name, tensor in (("q", q), ("w_k", w_k), ("w_v", w_v)):
        require(tensor.dim() == 3, f"{name}.shape", list(tensor.shape), "3 sizes")
    num_heads, nope_size, latent_size = w_k.shape
    rope_size = row_size - latent_size
    require(rope_size >= 0, "rows of the cache", row_size, f"at least latent_size, {latent_size}")
    wanted = [len(q), num_heads, nope_size + rope_size]
    require(list(q.shape) == wanted, "q.shape", list(q.shape), str(wanted))
    wanted = [num_heads, w_v.shape[1], latent_size]
    require(list(w_v.shape) == wanted, "w_v.shape", list(w_v.shape), str(wanted))


def expand(rows: Tensor, w_k: Tensor, w_v: Tensor) -> tuple[Tensor, Tensor]:
    """K and V of every head.

    rows     [seq_len, latent_size + rope_size]
    returns  k [seq_len, num_heads, nope_size + rope_size], v [seq_len, num_heads, value_size]
    """
    num_heads, _, latent_size = w_k.shape
    c, r = rows[:, :latent_size], rows[:, latent_size:]
    k = torch.einsum("tc,hnc->thn", c, w_k)
    v = torch.einsum("tc,hvc->thv", c, w_v)
    return torch.cat([k, r[:, None].expand(-1, num_heads, -1)], dim=-1), v


def absorb(q: Tensor, w_k: Tensor) -> Tensor:
    """Queries that can be multiplied with the rows of the cache.

    q        [num_seqs, num_heads, nope_size + rope_size]
    returns  [num_seqs, num_heads, latent_size + rope_size]
    """
    nope, rope = q.split([w_k.shape[1], q.shape[2] - w_k.shape[1]], dim=-1)
    return torch.cat([torch.einsum("shn,hnc->shc", nope, w_k), rope], dim=-1)


def values_of(latent_out: Tensor, w_v: Tensor) -> Tensor:
    """From the weighted mean of latents to the output of each head.

    latent_out  [num_seqs, num_heads, latent_size]
    returns     [num_seqs, num_heads, value_size]
    """
    return torch.einsum("shc,hvc->shv", latent_out, w_v)


def attend_expanded(q: Tensor, rows: Tensor, w_k: Tensor, w_v: Tensor, scale: float) -> Tensor:
    """One query of one sequence over all its tokens, by K and V.

    q        [1, num_heads, nope_size + rope_size]
    rows     [seq_len, latent_size + rope_size]
    returns  [1, num_heads, value_size]

    Raises ValueError if the sizes do not fit.
    """
    require_latent(q, rows.shape[1], w_k, w_v)
    k, v = expand(rows, w_k, w_v)
    weights = (scale * torch.einsum("shd,thd->sht", q, k)).softmax(dim=-1)
    return torch.einsum("sht,thv->shv", weights, v)


def attend_absorbed(q: Tensor, rows: Tensor, w_k: Tensor, w_v: Tensor, scale: float) -> Tensor:
    """The same without K and V: all heads read the same rows, as if there were one KV head."""
    require_latent(q, rows.shape[1], w_k, w_v)
    weights = (scale * absorb(q, w_k) @ rows.T).softmax(dim=-1)  # [1, num_heads, seq_len]
    return values_of(weights @ rows[:, : w_k.shape[2]], w_v)


def paged_latent(
    q: Tensor,
    cache: Tensor,
    block_tables: Tensor,
    seq_lens: Tensor,
    w_k: Tensor,
    w_v: Tensor,
    scale: float,
    attend: Callable[..., Tensor] = paged_online,
) -> Tensor:
    """One decode step over a latent cache in blocks.

    q             [num_seqs, num_heads, nope_size + rope_size]
    cache         [num_blocks, 1, block_size, latent_size + rope_size]
    block_tables  [num_seqs, max_num_blocks_per_seq] int32
    seq_lens      [num_seqs] int32
    attend        any stage that reads the plain layout
    returns       [num_seqs, num_heads, value_size]

    Raises ValueError if the sizes do not fit, or a table names a block that is not there.
    """
    require_latent(q, cache.shape[-1], w_k, w_v)
    # The rows are the keys; as values, their last rope_size numbers are not wanted.
    out = attend(absorb(q, w_k), cache, cache, block_tables, seq_lens, scale)
    return values_of(out[..., : w_k.shape[2]], w_v)
