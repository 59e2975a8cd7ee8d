"""Random inputs whose scores are flat, ordinary, sharp, equal, huge, far below zero, or drift.

The usual random q and k give a softmax so flat that a kernel that ignores K passes.
"""

import numpy as np
import torch
from torch import Tensor

from pa_tutorial.attention.tiny_lm import TinyLM

SOFTMAX_REGIMES = ("flat", "ordinary", "sharp")
SCORE_REGIMES = (
    *SOFTMAX_REGIMES,
    "deep_negative",
    "huge",
    "equal",
    "opposite",
    "extreme",
    "drifting",
)

# All scores of a head are near this number.
NEAR = {"deep_negative": -300.0, "huge": 1e4, "extreme": -300.0}


def draw_decode(
    seq_lens: tuple[int, ...],
    num_heads: int,
    num_kv_heads: int,
    head_size: int,
    scale: float,
    scores: str,
    seed: int,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The inputs of a decode step in a score regime, float64.

    returns  q [num_seqs, num_heads, head_size];
             keys, values [sum of seq_lens, num_kv_heads, head_size]
    """
    rng = np.random.default_rng(seed)
    q = rng.standard_normal((len(seq_lens), num_heads, head_size))
    keys = rng.standard_normal((sum(seq_lens), num_kv_heads, head_size))
    # A mean of one half in V: sums of V then grow with the length, as rounding errors like.
    values = rng.standard_normal(keys.shape) + 0.5
    ratio = num_heads // num_kv_heads
    if scores == "flat":
        q *= 0.05
    elif scores == "sharp":
        _sharpen(seq_lens, scale, q, keys, rng)
    elif scores in NEAR:
        # q and k get opposite (or equal) parts along one direction; all else is orthogonal to it.
        target = NEAR[scores]
        signs = np.full((len(seq_lens), num_heads, 1), np.sign(target))
        if scores == "extreme":  # the other sign by turns, in heads and in sequences
            signs[np.indices(signs.shape).sum(axis=0) % 2 == 1] *= -1
        direction = rng.standard_normal((num_kv_heads, head_size))
        direction /= np.linalg.norm(direction, axis=-1, keepdims=True)
        size = np.sqrt(abs(target) / scale)
        for array, along, part in (
            (keys, direction, size),
            (q, np.repeat(direction, ratio, axis=0), size * signs),
        ):
            array += (part - (array * along).sum(-1, keepdims=True)) * along
    elif scores == "drifting":
        _drift(seq_lens, scale, q, keys, rng)
    elif scores == "equal":
        start = 0
        for seq_len in seq_lens:
            keys[start : start + seq_len] = keys[start]
            start += seq_len
    elif scores == "opposite":  # one product each: no order of a sum makes two scores differ
        q[:], keys[:] = 0, 0
        q[..., 0], keys[..., 0] = -1, 1
    return q, keys, values


def _sharpen(
    seq_lens: tuple[int, ...],
    scale: float,
    q: np.ndarray,
    keys: np.ndarray,
    rng: np.random.Generator,
) -> None:
    """Lean each query towards one key, harder and harder, until its weight is over one half."""
    num_heads = q.shape[1]
    ratio = num_heads // keys.shape[1]
    start = 0
    for sequence, seq_len in enumerate(seq_lens):
        for head in range(num_heads):
            own_keys = keys[start : start + seq_len, head // ratio]
            target = own_keys[rng.integers(seq_len)]
            for _ in range(32):
                scores = own_keys @ q[sequence, head] * scale
                weights = np.exp(scores - scores.max())
                if weights.max() > 0.6 * weights.sum():
                    break
                q[sequence, head] += target
        start += seq_len


def _drift(
    seq_lens: tuple[int, ...],
    scale: float,
    q: np.ndarray,
    keys: np.ndarray,
    rng: np.random.Generator,
) -> None:
    """Along one direction, each key leans a little more towards q; odd heads read it negated."""
    num_heads, num_kv_heads = q.shape[1], keys.shape[1]
    direction = rng.standard_normal(keys.shape[1:])
    direction /= np.linalg.norm(direction, axis=-1, keepdims=True)
    size = np.sqrt(300.0 / scale)
    signs = np.where(np.arange(num_heads) % 2, -1.0, 1.0)[:, None]
    along_keys = np.concatenate([np.linspace(-size, size, seq_len) for seq_len in seq_lens])
    for array, along, part in (
        (keys, direction, along_keys[:, None, None]),
        (q, np.repeat(direction, num_heads // num_kv_heads, axis=0), size * signs),
    ):
        array += (part - (array * along).sum(-1, keepdims=True)) * along


def make_extreme(model: TinyLM, rng: np.random.Generator) -> None:
    """Scores near +300 or -300: one large coordinate of the hidden state, read by q and k.

    Its sign alternates with the position; the queries of every second head read it negated.
    The first query of such a head sees no score but -300, while other heads have +300.
    """
    config = model.config
    size = 30.0
    model.token_embedding.weight[:, 0] = 0.0
    model.position_embedding.weight[:, 0] = size
    model.position_embedding.weight[1::2, 0] = -size
    direction = rng.standard_normal(config.head_size)
    direction = torch.from_numpy(direction / np.linalg.norm(direction)).float()
    strength = (300 / config.scale) ** 0.5 / 10  # the coordinate is near 10 after the norm
    for layer in model.layers:
        for head in range(config.num_heads):
            rows = slice(head * config.head_size, (head + 1) * config.head_size)
            layer.to_q.weight[rows, 0] = direction * strength * (-1) ** (head + 1)
        layer.to_k.weight[:, 0] = (direction * strength).repeat(config.num_kv_heads)


def strided_view(q: Tensor) -> Tensor:
    """The same q [tokens, num_heads, head_size], inside a larger tensor whose rest is NaN."""
    num_tokens, num_heads, head_size = q.shape
    fused = torch.full((num_tokens, num_heads + 2, head_size), float("nan"), dtype=q.dtype)
    fused[:, :num_heads] = q
    return fused[:, :num_heads]
