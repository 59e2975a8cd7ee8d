"""Grading of notebook 12: made-up partitions, and what a kernel that reads them may use."""

from collections.abc import Sequence

import numpy as np

from pa_tutorial.exercises.drawing import seeded
from pa_tutorial.simt import Trace
from pa_tutorial.walk.calls import AnswerError


def made_up_partitions(
    seq_lens: Sequence[int],
    partition_size: int,
    num_heads: int,
    head_size: int,
    first: float,
    step: float,
    draw: int,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """exp_sums, max_logits, tmp_out (NaN where there is no partition), and out in float64.

    first, step  the maxima are about first, first + step, …
    """
    rng = seeded(len(seq_lens), draw)
    used = -(-np.array(seq_lens) // partition_size)
    shape = len(seq_lens), num_heads, int(used.max())
    noise = rng.standard_normal(shape)
    if draw:
        noise = noise.clip(-0.9, 0.9)  # with a step of 2, every maximum is beyond the last one
    max_logits = (first + step * np.arange(shape[2]) + noise).astype(np.float32)
    exp_sums = (1 + partition_size * rng.random(shape)).astype(np.float32)
    tmp_out = (0.5 + rng.standard_normal((*shape, head_size))).astype(np.float32)
    none = np.broadcast_to(np.arange(shape[2]) >= used[:, None, None], shape)
    m = np.where(none, -np.inf, max_logits.astype(float))
    r = np.where(none, 0, exp_sums) * np.exp(m - m.max(axis=-1, keepdims=True))
    weights = (r / r.sum(axis=-1, keepdims=True))[..., None]
    expected = (weights * np.where(none[..., None], 0, tmp_out)).sum(axis=2)
    for array in (exp_sums, max_logits, tmp_out):
        array[none] = np.nan
    return exp_sums, max_logits, tmp_out, expected


def require_registers_only(trace: Trace) -> None:
    """No shared memory and no barrier."""
    if len(trace.only(space="shared")) or len(trace.only(kind="barrier")):
        raise AnswerError(
            "the answer is right, with shared memory or a barrier; a thread that goes once through "
            "the partitions needs only its own three numbers"
        )
