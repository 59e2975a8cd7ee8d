"""Attention over a paged cache: gather all blocks first, or process them one by one."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from pa_tutorial.arguments import require, require_readable, require_type
from pa_tutorial.attention.cached import cached_attention
from pa_tutorial.attention.online import empty_part, merge, part_of
from pa_tutorial.attention.step import DecodeStep
from pa_tutorial.paging.layouts import by_token, gather
from pa_tutorial.paging.quantization import dequantized

Probe = dict[str, Tensor]


@dataclass
class TorchLaunch:
    """A decode step and the function that computes it: attend(step, probe=None) -> out.

    out  in the shape of q
    """

    step: DecodeStep
    attend: Callable[..., Tensor]

    def __post_init__(self) -> None:
        require_type(isinstance(self.step, DecodeStep), "step", self.step, "a DecodeStep")
        self.out = torch.full_like(self.step.q, float("nan"))

    def run(self) -> Tensor:
        """Compute the step from what its tensors hold now; return `out`."""
        return self.out.copy_(self.attend(self.step))

    def probe(self) -> Probe:
        """Compute the step; return `out`, and the scores and weights that the function notes."""
        found: Probe = {}
        self.out.copy_(self.attend(self.step, found))
        return found | {"out": self.out}


@dataclass(frozen=True)
class TorchBackend:
    """A stage in torch as a backend. It reads either layout; `layout` is the one to test it
    with."""

    attend: Callable[..., Tensor]
    layout: str
    reusable: ClassVar[bool] = True

    def prepare(self, step: DecodeStep) -> TorchLaunch:
        return TorchLaunch(step, self.attend)

    def why_absent(self) -> None:
        """None, because torch runs everywhere."""


def paged_gather(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_tables: Tensor,
    seq_lens: Tensor,
    scale: float,
    alibi_slopes: Tensor | None = None,
) -> Tensor:
    """One decode step: copy K and V out of their blocks, then call `cached_attention`.

    Stage `paged_gather`.

    q                 [num_seqs, num_heads, head_size]   the newest token of each sequence
    k_cache, v_cache  vLLM's layout or the plain one (pa_tutorial.paging.layouts)
    block_tables      [num_seqs, max_num_blocks_per_seq] int32
    seq_lens          [num_seqs] int32   tokens in the cache, the newest included
    alibi_slopes      [num_heads]; adds slope * (j - seq_len + 1) to the score of key j
    returns           [num_seqs, num_heads, head_size], in the dtype of q

    Raises TypeError or ValueError, naming the argument, as DecodeStep does.
    """
    step = DecodeStep(q, k_cache, v_cache, block_tables, seq_lens, scale, alibi_slopes)
    return gather_then_attend(step)


def gather_then_attend(step: DecodeStep, probe: Probe | None = None) -> Tensor:
    """paged_gather of a step.

    probe  receives `qk` (padded with -inf) and `logits` (padded with 0), both
           [num_seqs, num_heads, max(seq_lens)]
    """
    outs, probes = [], []
    for sequence, seq_len in enumerate(step.seq_lens.tolist()):  # NEW
        # K and V [seq_len, num_kv_heads, head_size]
        k, v = gather(step.k_cache, step.v_cache, step.block_tables[sequence], seq_len)  # NEW
        if step.k_scale is not None:  # an 8-bit cache
            k, v = dequantized(k, step.k_scale), dequantized(v, step.v_scale)
        probes.append({})
        query = step.q[sequence : sequence + 1]
        outs.append(cached_attention(query, k, v, step.scale, step.alibi_slopes, probes[-1]))
    if probe is not None:
        probe["qk"] = _padded([p["qk"][:, 0] for p in probes], float("-inf"))
        probe["logits"] = _padded([p["logits"][:, 0] for p in probes], 0.0)
    return torch.cat(outs)


def _padded(rows: list[Tensor], value: float) -> Tensor:
    """[num_heads, seq_len] of each sequence -> [num_seqs, num_heads, longest]."""
    return pad_sequence([row.T for row in rows], batch_first=True, padding_value=value).mT


def paged_online(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_tables: Tensor,
    seq_lens: Tensor,
    scale: float,
    alibi_slopes: Tensor | None = None,
) -> Tensor:
    """One decode step that never gathers: blocks go through the online softmax one by one.

    Stage `paged_online`. The arguments, the result and the errors are as in `paged_gather`. The
    newest token is already in the cache, as in vLLM. The division by the sum of the weights comes
    last, so V times seq_len must stay below FLT_MAX.
    """
    step = DecodeStep(q, k_cache, v_cache, block_tables, seq_lens, scale, alibi_slopes)
    return stream_blocks(step)


def stream_blocks(step: DecodeStep, probe: Probe | None = None) -> Tensor:
    """paged_online of a step: the blocks of all sequences, one logical block index at a time.

    probe  receives `qk` [num_seqs, num_heads, max(seq_lens)], padded with -inf
    """
    k_tokens, v_tokens = by_token(step.k_cache, step.v_cache)
    _, block_size, num_kv_heads, head_size = v_tokens.shape
    # Group the query heads by KV head: [num_seqs, num_kv_heads, group, head_size]
    q = step.q.float().unflatten(1, (num_kv_heads, -1))
    part = empty_part(q.shape[:3], head_size, q)  # NEW
    scores = []
    for block_idx in range(-(-int(step.seq_lens.max()) // block_size)):  # NEW
        token = block_idx * block_size + torch.arange(block_size, device=step.q.device)
        is_token = token < step.seq_lens[:, None]  # [num_seqs, block_size]
        # A sequence that has ended has no block here, so block 0 is read in its place.
        numbers = step.block_tables[:, block_idx].where(is_token[:, 0], 0)  # NEW
        # k, v [num_seqs, num_kv_heads, block_size, head_size]: one block of each sequence
        k = k_tokens[numbers].flatten(3).transpose(1, 2).float()
        v = v_tokens[numbers].transpose(1, 2).float()
        if step.k_scale is not None:  # an 8-bit cache: one scale per KV head
            k, v = k * step.k_scale[:, None, None], v * step.v_scale[:, None, None]
        # A weight of 0 doesn't remove NaN, because 0 * NaN is NaN. So V is cleared first.
        v = v.masked_fill(~is_token[:, None, :, None], 0.0)  # NEW

        # qk[s, h, t] = scale * (q_sh . k_st)       [num_seqs, num_kv_heads, group, block_size]
        qk = step.scale * (q @ k.mT)
        if step.alibi_slopes is not None:
            slopes = step.alibi_slopes.float().unflatten(0, (num_kv_heads, -1))
            qk = qk + slopes[..., None] * (token - (step.seq_lens - 1)[:, None])[:, None, None]
        qk = qk.masked_fill(~is_token[:, None, None], float("-inf"))  # NEW
        if probe is not None:
            scores.append(qk.flatten(1, 2))
        part = merge(part, part_of(qk, v))  # NEW
    if probe is not None:
        probe["qk"] = torch.cat(scores, dim=-1)[..., : int(step.seq_lens.max())]
    return (part.acc / part.l[..., None]).flatten(1, 2).to(step.q.dtype)


gather_backend = TorchBackend(gather_then_attend, "vllm")
online_backend = TorchBackend(stream_blocks, "plain")


def flatten_queries(
    block_tables: Tensor, seq_lens: Tensor, query_lens: Tensor
) -> tuple[Tensor, Tensor]:
    """Treat many query tokens as sequences of one query each, so that a decode step can prefill.

    The query at position p sees the tokens 0 to p, just like the newest token of a sequence of
    seq_len p + 1 over the same blocks. So the causal mask needs no code at all.

    block_tables  [num_seqs, max_num_blocks_per_seq] int32
    seq_lens      [num_seqs] int32   tokens in the cache, including the new ones
    query_lens    [num_seqs]         how many of them, at the end, are new
    returns       block_tables [num_queries, max_num_blocks_per_seq], seq_lens [num_queries] int32

    Raises TypeError for anything but tensors, ValueError if a sequence has no new tokens or more
    new tokens than tokens, and unless each tensor has one entry per sequence.
    """
    given = {"block_tables": block_tables, "seq_lens": seq_lens, "query_lens": query_lens}
    for name, tensor in given.items():
        require_readable(name, tensor)
        same = tensor.dim() == 1 + (name == "block_tables") and len(tensor) == len(block_tables)
        require(same, f"{name}.shape", list(tensor.shape), "one row or number per sequence")
        is_whole = tensor.dtype in (torch.int32, torch.int64)
        require(is_whole, f"{name}.dtype", tensor.dtype, "torch.int32 or torch.int64")
    rows: list[Tensor] = []
    lens: list[int] = []
    for sequence, (row, seq_len, new) in enumerate(
        zip(block_tables, seq_lens.tolist(), query_lens.tolist(), strict=True)
    ):
        require(1 <= new <= seq_len, f"query_lens[{sequence}]", new, f"1 to {seq_len}")
        rows += [row] * new
        lens += range(seq_len - new + 1, seq_len + 1)
    return torch.stack(rows), torch.tensor(lens, dtype=torch.int32)
