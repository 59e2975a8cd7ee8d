"""Random inputs whose scores are flat, ordinary, sharp, equal, huge, far below zero, or drift.

The usual random q and k give a softmax so flat that a kernel could ignore K and pass.
"""

import numpy as np
import torch
from torch import Tensor

from pa_tutorial.attention.tiny_lm import TinyLM

SOFTMAX_REGIMES = ("flat", "ordinary", "sharp")
# All scores of a head are close to this number.
NEAR = {"deep_negative": -300.0, "huge": 1e4, "extreme": -300.0}
SCORE_REGIMES = (*SOFTMAX_REGIMES, *NEAR, "equal", "opposite", "drifting")


def set_scores(
    scores: str,
    seq_lens: tuple[int, ...],
    scale: float,
    q: np.ndarray,
    keys: np.ndarray,
    rng: np.random.Generator,
) -> None:
    """Change random inputs of a decode step so that their scores are in a regime.

    q     [num_seqs, num_heads, head_size]              standard normal, float64
    keys  [sum of seq_lens, num_kv_heads, head_size]    standard normal, float64
    """
    keys_of_sequence = np.split(keys, np.cumsum(seq_lens)[:-1])  # views
    if scores == "flat":
        q *= 0.05
    elif scores == "sharp":
        _sharpen(q, keys_of_sequence, scale, rng)
    elif scores in NEAR:
        signs = np.full((*q.shape[:2], 1), np.sign(NEAR[scores]))
        if scores == "extreme":  # the sign alternates over heads and over sequences
            signs[np.indices(signs.shape).sum(axis=0) % 2 == 1] *= -1
        size = np.sqrt(abs(NEAR[scores]) / scale)
        _lean(q, keys, size * signs, size, rng)
    elif scores == "drifting":  # keys lean more and more towards q; odd heads read them negated
        size = np.sqrt(300.0 / scale)
        signs = np.where(np.arange(q.shape[1]) % 2, -1.0, 1.0)[:, None]
        of_keys = np.concatenate([np.linspace(-size, size, seq_len) for seq_len in seq_lens])
        _lean(q, keys, size * signs, of_keys[:, None, None], rng)
    elif scores == "equal":
        for own_keys in keys_of_sequence:
            own_keys[:] = own_keys[0]
    elif scores == "opposite":  # one product each, so the order of a sum can't make scores differ
        q[:], keys[:] = 0, 0
        q[..., 0], keys[..., 0] = -1, 1


def _sharpen(
    q: np.ndarray, keys_of_sequence: list[np.ndarray], scale: float, rng: np.random.Generator
) -> None:
    """Lean each query towards one key, harder and harder, until its weight is over one half."""
    for queries, keys in zip(q, keys_of_sequence, strict=True):
        ratio = len(queries) // keys.shape[1]
        for head, query in enumerate(queries):
            own_keys = keys[:, head // ratio]
            target = own_keys[rng.integers(len(own_keys))]
            for _ in range(32):
                scores = own_keys @ query * scale
                weights = np.exp(scores - scores.max())
                if weights.max() > 0.6 * weights.sum():
                    break
                query += target


def _lean(
    q: np.ndarray,
    keys: np.ndarray,
    of_q: np.ndarray,
    of_keys: float | np.ndarray,
    rng: np.random.Generator,
) -> None:
    """Give q and keys these components along one direction; the orthogonal ones stay."""
    direction = rng.standard_normal(keys.shape[1:])
    direction /= np.linalg.norm(direction, axis=-1, keepdims=True)
    direction_of_heads = np.repeat(direction, q.shape[1] // keys.shape[1], axis=0)
    for array, along, part in ((keys, direction, of_keys), (q, direction_of_heads, of_q)):
        array += (part - (array * along).sum(-1, keepdims=True)) * along


def make_extreme(model: TinyLM, rng: np.random.Generator) -> None:
    """Scores near +300 or -300: one large coordinate of the hidden state, read by q and k.

    Its sign alternates with the position; the queries of every second head read it negated.
    The first query of such a head sees only the score -300, while other heads have +300.
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
