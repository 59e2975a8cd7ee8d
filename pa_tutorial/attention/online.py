"""Online softmax: attention in one pass over the tokens, and how parts of it are merged.

Three passes need all scores at once: for the maximum, for the sum, for the output. Online
softmax keeps three things, and can stop, split and continue anywhere:

    m    the largest score so far; -inf if no token was seen
    l    the sum of exp(score - m) over the tokens seen
    acc  the sum of exp(score - m) * v over the tokens seen

The output is acc / l. Notebook 05 writes it for one query in plain Python, then in torch as here.

Source: Milakov and Gimelshein, "Online normalizer calculation for softmax" (2018), for m and l.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from pa_tutorial.arguments import require, require_floats, require_type, whole_number, whole_numbers
from pa_tutorial.attention.full import repeat_kv_heads, require_attention_inputs


class Part(NamedTuple):
    """The state of attention over some tokens: enough to continue, or to merge with other parts.

    in torch         m, l [..., num_queries]   acc [..., num_queries, head_size], all float32
    in plain Python  m, l float                acc a list of head_size floats (exercises, figures)
    """

    m: float | Tensor
    l: float | Tensor
    acc: list[float] | Tensor


def exps_from(scores: Tensor, m: Tensor) -> Tensor:
    """exp(scores - m), and 0 for a score of -inf.

    m  in the shape of the scores, or with 1 in place of some of their sizes

    If no token was seen, m is -inf too, and -inf - (-inf) is NaN. A NaN in l or acc would stay.
    Raises TypeError or ValueError unless both are tensors of real numbers with matching shapes.
    """
    require_floats(scores=scores, m=m)
    sizes = zip(m.shape, scores.shape, strict=False)
    fits = m.dim() == scores.dim() and all(size in (1, full) for size, full in sizes)
    if not fits:
        given = f"with scores {list(scores.shape)}, m has shape {list(m.shape)}"
        raise ValueError(f"{given}; it must be the same, or have 1 in place of some sizes")
    return _exps(scores, m)


def _exps(scores: Tensor, m: Tensor) -> Tensor:
    """exps_from of tensors that have been checked, as at each token of a loop."""
    return torch.exp(scores - m).masked_fill(scores == float("-inf"), 0.0)


def empty_part(shape: Sequence[int], head_size: int, like: Tensor | None = None) -> Part:
    """The part for no tokens at all, for queries in the given shape [..., num_queries].

    like  a tensor on the device where the part is needed; by default the CPU

    Raises TypeError or ValueError for anything but a row of sizes, a size and such a tensor.
    """
    head_size = whole_number("head_size", head_size, 1, 2**16)
    shape = whole_numbers("shape", shape)
    require(min(shape, default=0) >= 0, "shape", shape, "a row of sizes, each at least 0")
    if like is not None:
        require_floats(like=like)
    m = torch.full(tuple(shape), float("-inf"), device=None if like is None else like.device)
    return Part(m, torch.zeros_like(m), m.new_zeros(*shape, head_size))


def part_of(qk: Tensor, v: Tensor) -> Part:
    """The part for some tokens, computed all at once.

    qk  [..., num_queries, num_tokens]  scores; -inf where a query doesn't see the token
    v   [..., num_tokens, head_size]    of all tokens; finite even where all scores are -inf

    Raises TypeError or ValueError unless both are tensors of real numbers, with tokens and with
    matching shapes and dtypes.
    """
    require_floats(qk=qk, v=v)
    shape = list(qk.shape)
    require(qk.dim() >= 2 and shape[-1] > 0, "qk.shape", shape, "[..., num_queries, num_tokens]")
    of_v = [*shape[:-2], shape[-1]]
    if [*v.shape[:-1]] != of_v or v.dtype != qk.dtype:
        expected = f"{of_v} and head_size, {qk.dtype}"
        raise ValueError(f"v is {list(v.shape)}, {v.dtype}; with this qk it must be {expected}")
    m = qk.amax(dim=-1)
    weights = exps_from(qk, m[..., None])
    return Part(m, weights.sum(dim=-1), weights @ v)


def merge(one: Part, other: Part) -> Part:
    """The part for the tokens of both parts. Parts merge in any order and any grouping.

    Raises TypeError or ValueError, naming the field, unless both are Parts of tensors with
    matching shapes.
    Source: vLLM does the same with its partitions, in paged_attention_v2_reduce_kernel,
    csrc/attention/attention_kernels.cuh.
    """
    for name, part in (("one", one), ("other", other)):
        require_type(isinstance(part, Part), name, part, "a Part")
        require_floats(**{f"{name}.{field}": tensor for field, tensor in part._asdict().items()})
        shapes, m = [tuple(tensor.shape) for tensor in part], tuple(one.m.shape)
        expected = [m, m, (*m, *one.acc.shape[-1:])]
        if shapes != expected:
            raise ValueError(f"{name} has shapes {shapes}; m, l and acc must have {expected}")
    m = torch.maximum(one.m, other.m)
    # exp(m_part - m) <= 1 rescales each part from its own maximum to the common one.
    rescale, rescale_other = exps_from(one.m, m), exps_from(other.m, m)
    l = one.l * rescale + other.l * rescale_other
    acc = one.acc * rescale[..., None] + other.acc * rescale_other[..., None]
    return Part(m, l, acc)


def online_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float,
    alibi_slopes: Tensor | None = None,
    probe: dict[str, Tensor] | None = None,
) -> Tensor:
    """Attention of the newest tokens over a cache, one key after the other.

    Stage `online_softmax`. The arguments and the result are as in `cached_attention`;
    probe receives `qk`, [num_heads, num_new_tokens, seq_len].
    Raises TypeError or ValueError for arguments of the wrong type or with shapes that don't match.
    """
    require_attention_inputs(q, k, v, scale, alibi_slopes)
    num_new_tokens, num_heads, head_size = q.shape
    seq_len = k.shape[0]
    k, v = repeat_kv_heads(k, num_heads), repeat_kv_heads(v, num_heads)
    i = torch.arange(seq_len - num_new_tokens, seq_len, device=q.device)

    m, l, acc = empty_part((num_heads, num_new_tokens), head_size, q)  # NEW
    scores = []
    for j in range(seq_len):  # NEW
        # qk[h, i] = scale * (q_i . k_j)
        qk = scale * torch.einsum("ihd,hd->hi", q.float(), k[j].float())
        if alibi_slopes is not None:
            qk = qk + alibi_slopes.float()[:, None] * (j - i)
        qk = qk.masked_fill(j > i, float("-inf"))
        if probe is not None:
            scores.append(qk)

        m_new = torch.maximum(m, qk)  # NEW
        # The sums so far are relative to the old maximum: rescale them.
        rescale, weight = _exps(m, m_new), _exps(qk, m_new)  # NEW
        l = l * rescale + weight  # NEW
        acc = acc * rescale[..., None] + weight[..., None] * v[j].float()[:, None]  # NEW
        m = m_new  # NEW
    if probe is not None:
        probe["qk"] = torch.stack(scores, dim=-1)
    # [num_heads, num_new_tokens, head_size] -> out [num_new_tokens, num_heads, head_size]
    return (acc / l[..., None]).transpose(0, 1).to(q.dtype)  # NEW
