"""PARTITION_SIZE > 0: the first half of v2. A reduce kernel joins the partitions; here, NumPy."""

import dataclasses
import math
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from kernel_inputs import problem, values
from torch import Tensor

from pa_tutorial.attention.step import DecodeStep
from pa_tutorial.checks.comparing import relative_errors
from pa_tutorial.kernels.launch import prepare_v1
from pa_tutorial.kernels.paged_attention import paged_attention
from pa_tutorial.kernels.running import as_stored
from pa_tutorial.simt import launch
from pa_tutorial.walk.problem import DecodeProblem

pytestmark = pytest.mark.cuda_v1
UNTOUCHED = -7.0  # no exp_sum, and no output of these problems


@dataclass(frozen=True)
class Partitions:
    """What the kernel left, float32 or the dtype of q.

    exp_sums, max_logits  [num_seqs, num_heads, num_partitions]
    out                   [num_seqs, num_heads, num_partitions, head_size]
    is_used               [num_seqs, num_partitions]   the partition has a token
    """

    exp_sums: Tensor
    max_logits: Tensor
    out: Tensor
    is_used: np.ndarray

    def merged(self) -> np.ndarray:
        """[num_seqs, num_heads, head_size] float64, as the second half of v2 does."""
        used = self.is_used[:, None]
        maxima = np.where(used, self.max_logits.double().numpy(), -np.inf)
        sums = np.where(used, self.exp_sums.double().numpy(), 0.0)
        weights = sums * np.exp(maxima - maxima.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        out = np.where(used[..., None], self.out.double().numpy(), 0.0)
        return (weights[..., None] * out).sum(axis=2)


def two_heads(**changes: object) -> DecodeProblem:
    return problem(**{"num_heads": 2, "num_kv_heads": 1, **changes})


def run(paged: DecodeStep, partition_size: int, more: int = 0, **options: object) -> Partitions:
    """One launch. `more` partitions than the longest sequence needs."""
    v1 = prepare_v1(*values(paged))
    geometry = dataclasses.replace(v1.geometry, partition_size=partition_size)
    (num_seqs, num_heads, head_size), seq_lens = paged.q.shape, paged.seq_lens.numpy()
    num_partitions = math.ceil(max(seq_lens) / partition_size) + more
    of_a_head = (num_seqs, num_heads, num_partitions)
    exp_sums, max_logits = torch.full((2, *of_a_head), UNTOUCHED)
    out = torch.full((*of_a_head, head_size), UNTOUCHED, dtype=paged.q.dtype)
    launch(
        paged_attention(geometry),
        (num_heads, num_seqs, num_partitions),
        geometry.NUM_THREADS,
        *(exp_sums.view(-1), max_logits.view(-1), as_stored(out.view(-1))),
        *v1.kernel_arguments[3:],
        shared_bytes=geometry.dynamic_shared_bytes(max(seq_lens)),
        unwritten=("exp_sums", "max_logits", "out"),
        **options,
    )
    is_used = partition_size * np.arange(num_partitions) < seq_lens[:, None]
    return Partitions(exp_sums, max_logits, out, is_used)


def bound(case: DecodeProblem) -> float:
    """Every partition is rounded to the dtype of out; sums are float32.

    Scores near 300 are float32 numbers 3e-5 apart: so far off are their weights.
    """
    large = case.scores in ("deep_negative", "drifting")
    return torch.finfo(case.dtype).eps / 2 + (3e-5 if large else 3e-6)


SHORT = two_heads(seq_lens=(70, 5, 33, 32))
MANY = {
    "blocks_of_16": (SHORT, 32),
    "one_block_a_partition": (SHORT, 16),
    "blocks_of_8": (two_heads(seq_lens=(70, 41, 64), block_size=8, alibi=True), 24),
    "blocks_of_32": (two_heads(seq_lens=(140, 64, 1), block_size=32), 64),
    "vllms_512": (two_heads(seq_lens=(1100, 512, 513), num_heads=1), 512),
    "float16": (two_heads(seq_lens=(70, 33), dtype=torch.float16), 32),
    "bfloat16": (two_heads(seq_lens=(70, 33), dtype=torch.bfloat16), 32),
    "far_apart": (two_heads(seq_lens=(100, 64), scores="drifting"), 32),
    "deep_negative": (two_heads(seq_lens=(70, 41), scores="deep_negative"), 32),
}
of_many = pytest.mark.parametrize(("case", "partition_size"), MANY.values(), ids=MANY)


@of_many
def test_merged_partitions_are_the_oracles_output(case: DecodeProblem, partition_size: int) -> None:
    out = run(case.paged("vllm"), partition_size).merged()
    assert relative_errors(out, case.expected()["out"]).max() < bound(case)


@pytest.mark.parametrize("order", ["forward", "reverse"])
def test_partitions_may_run_in_any_order(order: str) -> None:
    out = run(SHORT.paged("vllm"), 32, order=order).merged()
    assert relative_errors(out, SHORT.expected()["out"]).max() < bound(SHORT)


@pytest.mark.parametrize("name", ["exp_sums", "max_logits", "out"])
def test_partitions_past_the_end_leave_their_places_untouched(name: str) -> None:
    result = run(SHORT.paged("vllm"), 32, more=2)
    touched = (getattr(result, name) != UNTOUCHED).reshape(*result.exp_sums.shape, -1).numpy()
    used = np.broadcast_to(result.is_used[:, None, :, None], touched.shape)
    assert np.array_equal(touched, used)


def scores_of(case: DecodeProblem, partition_size: int) -> list[list[np.ndarray]]:
    """[sequence][partition] -> [num_heads, tokens] float64."""
    qk = case.expected()["qk"]
    return [
        [
            qk[sequence, :, start : min(start + partition_size, seq_len)]
            for start in range(0, seq_len, partition_size)
        ]
        for sequence, seq_len in enumerate(case.seq_lens)
    ]


@of_many
def test_max_logits_are_the_maxima_of_the_partitions(
    case: DecodeProblem, partition_size: int
) -> None:
    result = run(case.paged("vllm"), partition_size)
    for sequence, parts in enumerate(scores_of(case, partition_size)):
        expected = np.stack([part.max(axis=-1) for part in parts], axis=-1)
        found = result.max_logits[sequence, :, : len(parts)].numpy()
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


@of_many
def test_exp_sums_are_those_below_the_partitions_own_maximum(
    case: DecodeProblem, partition_size: int
) -> None:
    result = run(case.paged("vllm"), partition_size)
    for sequence, parts in enumerate(scores_of(case, partition_size)):
        expected = np.stack(
            [np.exp(part - part.max(axis=-1, keepdims=True)).sum(axis=-1) for part in parts],
            axis=-1,
        )
        found = result.exp_sums[sequence, :, : len(parts)].numpy()
        np.testing.assert_allclose(found, expected, rtol=1e-4)  # scores of 300 have steps of 3e-5


def test_out_of_a_partition_is_divided_by_its_own_sum() -> None:
    """V of ones: each partition must give 1, whatever its share of the whole."""
    paged = SHORT.paged("vllm")
    ones = torch.where(paged.v_cache.isnan(), paged.v_cache, 1.0)
    result = run(dataclasses.replace(paged, v_cache=ones), 32)
    used = np.broadcast_to(result.is_used[:, None], result.out.shape[:3])
    np.testing.assert_allclose(result.out.numpy()[used], 1.0, rtol=2e-6)


def test_one_partition_is_v1() -> None:
    paged = SHORT.paged("vllm")
    v1 = prepare_v1(*values(paged))
    v1.simulate()
    assert torch.equal(run(paged, 512).out[:, :, 0], v1.out)


def test_v1_does_not_touch_exp_sums_and_max_logits() -> None:
    """They are empty there: touching them would be found as an index outside."""
    v1 = prepare_v1(*values(SHORT.paged("vllm")))
    assert [len(v1.arguments[name]) for name in ("exp_sums", "max_logits")] == [0, 0]
    assert v1.simulate().clean
