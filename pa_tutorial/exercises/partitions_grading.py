"""Grading of notebook 12: by what the kernels of v2 do, and by made-up partitions."""

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from pa_tutorial.exercises.drawing import seeded
from pa_tutorial.exercises.exercise import require_shape
from pa_tutorial.kernels.intermediates import SCORES_DONE
from pa_tutorial.kernels.launch import Partitioned, prepare_v2
from pa_tutorial.simt import Trace
from pa_tutorial.walk.calls import AnswerError, require_written
from pa_tutorial.walk.problem import DecodeProblem

RANGES = ("start_block_idx", "end_block_idx", "start_token_idx", "end_token_idx")


def problem(seq_lens: Sequence[int], **sizes: object) -> DecodeProblem:
    """A decode step in heads of 32."""
    sizes = {"num_heads": 1, "num_kv_heads": 1, "block_size": 8, **sizes}
    words = "exercise", "a part of v2", "see the exercise"
    return DecodeProblem(*words, seq_lens=tuple(seq_lens), head_size=32, **sizes)


def another_batch(rng: np.random.Generator, name: str, sizes: tuple) -> tuple[str, tuple]:
    """Other lengths for a case of split_batch, and the same property in words."""
    _, block_size, size = sizes
    parts = int(rng.integers(2, 6))
    few, tail = (int(n) for n in rng.integers(1, block_size, 2))
    if name == "worked_example":
        lens = (parts * size + tail,)
        words = f"{lens[0]} tokens in partitions of {size}"
    elif name == "two_blocks":
        lens = (parts * size + tail,)
        words = f"{lens[0]} tokens: partitions of two blocks"
    elif name == "full":
        lens = (parts * size,)
        words = f"{lens[0]} tokens: {parts} partitions, all full"
    elif name == "one_more":
        lens = (parts * size + 1,)
        words = f"{lens[0]} tokens: one more partition for one token"
    elif name == "mixed_batch":
        lens = tuple(rng.permutation([3 * size + block_size + tail, block_size + few, few, size]))
        words = f"{', '.join(map(str, lens[:-1]))} and {lens[-1]} tokens"
    else:  # longest_last
        lens = (block_size - tail, few, size + few)
        words = f"{lens[0]}, {lens[1]} and {lens[2]} tokens, blocks of {block_size}"
    return words, (tuple(map(int, lens)), block_size, size)


@lru_cache(maxsize=64)
def ranges_of_kernel(seq_lens: tuple[int, ...], block_size: int, partition_size: int) -> Tensor:
    """[num_seqs, max_num_partitions, 4] RANGES as the kernel computes them.

    0 where it returns before it does.
    """
    inputs = problem(seq_lens, block_size=block_size).paged("vllm")
    launch = prepare_v2(**vars(inputs), partition_size=partition_size).partitions
    _, num_seqs, num_partitions = launch.grid
    out = torch.zeros(num_seqs, num_partitions, len(RANGES), dtype=torch.int64)
    for shot in launch.simulate(watch=SCORES_DONE, names=RANGES).at(SCORES_DONE):
        _, sequence, partition = shot.block
        out[sequence, partition] = torch.tensor([int(shot[name][0]) for name in RANGES])
    return out


def as_ranges(result: object, num_seqs: int, num_partitions: int) -> Tensor:
    """The answer as [num_seqs, num_partitions, 4]; a message for its author if it is none."""
    rows = require_written(result)
    if not isinstance(rows, list | tuple) or len(rows) != num_seqs:
        raise AnswerError(f"it must return a list with a list for each of {num_seqs} sequences")
    for sequence, row in enumerate(rows):
        if not isinstance(row, list | tuple) or len(row) != num_partitions:
            found = len(row) if isinstance(row, list | tuple) else f"a {type(row).__name__}"
            raise AnswerError(
                f"sequence {sequence} must have {num_partitions} thread blocks, the grid is the "
                f"same for all sequences; it has {found}"
            )
        for numbers in row:
            of_ints = isinstance(numbers, tuple | list) and all(type(n) is int for n in numbers)
            if not of_ints or len(numbers) != len(RANGES):
                wanted = ", ".join(RANGES)
                raise AnswerError(
                    f"a thread block is {numbers!r:.60}; it must be four ints: ({wanted})"
                )
    return torch.tensor(rows)


@lru_cache(maxsize=64)
def left_by(step: DecodeProblem, partition_size: int) -> Partitioned:
    """v2 after its first kernel: what the partitions have left."""
    ready = prepare_v2(**vars(step.paged("vllm")), partition_size=partition_size)
    ready.partitions.simulate()
    return ready


def require_merged(result: object, like: Tensor) -> Tensor:
    """An output of the right shape and without NaN; a message for its author if it is none."""
    out = require_shape(result, [*like.shape[:2], like.shape[3]])
    if result.dtype != like.dtype:
        raise AnswerError(f"it returned {result.dtype}; it must return {like.dtype}")
    if out.isnan().any():
        sequence, head, _ = torch.nonzero(out.isnan())[0].tolist()
        raise AnswerError(
            f"out[{sequence}, {head}] holds NaN: a place that no partition wrote has a part in it, "
            "or exp of all is infinite or 0"
        )
    return out


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
