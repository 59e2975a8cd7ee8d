"""The reduce kernel alone, on invented partitions: many more than a small decode step has."""

import dataclasses

import numpy as np
import pytest
import torch
from kernel_inputs import problem, values

from pa_tutorial.kernels.changed import changed
from pa_tutorial.kernels.geometry import Geometry
from pa_tutorial.kernels.launch import paged_attention_v2, prepare_v2
from pa_tutorial.kernels.reduce import reduce
from pa_tutorial.kernels.running import Partitioned
from pa_tutorial.simt import launch

pytestmark = pytest.mark.cuda_v2
SIZE = 16  # tokens of a partition
SPREADS = {"alike": 1.0, "far_apart": 100.0}


def invented(
    seq_lens: tuple[int, ...],
    spread: float,
    num_heads: int = 2,
    num_threads: int = 64,
    head_size: int = 32,
) -> tuple[Geometry, dict[str, torch.Tensor]]:
    """Partitions as the paged kernel would leave them; NaN where a sequence has none."""
    geometry = Geometry(head_size, 16, torch.float32, num_threads, partition_size=SIZE)
    rng = torch.Generator().manual_seed(0)
    num_partitions = -(-max(seq_lens) // SIZE)
    of_a_head = (len(seq_lens), num_heads, num_partitions)
    parts = {
        "exp_sums": 1 + 15 * torch.rand(of_a_head, generator=rng),
        "max_logits": spread * torch.randn(of_a_head, generator=rng),
        "tmp_out": torch.randn(*of_a_head, head_size, generator=rng),
    }
    for sequence, seq_len in enumerate(seq_lens):
        for tensor in parts.values():
            tensor[sequence, :, -(-seq_len // SIZE) :] = torch.nan
    return geometry, {**parts, "seq_lens": torch.tensor(seq_lens, dtype=torch.int32)}


def reduced(geometry: Geometry, parts: dict[str, torch.Tensor], **options: object) -> torch.Tensor:
    num_seqs, num_heads, num_partitions, head_size = parts["tmp_out"].shape
    out = torch.full((num_seqs, num_heads, head_size), torch.nan)
    launch(
        options.pop("kernel", reduce(geometry)),
        (num_heads, num_seqs),
        geometry.NUM_THREADS,
        *(out.view(-1), *(parts[n].view(-1) for n in ("exp_sums", "max_logits", "tmp_out"))),
        *(parts["seq_lens"], num_partitions),
        shared_bytes=8 * num_partitions,
        unwritten="out",
        **options,
    )
    return out


def expected(parts: dict[str, torch.Tensor]) -> np.ndarray:
    """out = sum of tmp_out * r / sum of r, with r = exp_sum * exp(m - M), in float64."""
    rows = []
    for sequence, seq_len in enumerate(parts["seq_lens"].tolist()):
        n = -(-seq_len // SIZE)
        sums, maxima, outs = (
            parts[name][sequence, :, :n].double().numpy()
            for name in ("exp_sums", "max_logits", "tmp_out")
        )
        r = sums * np.exp(maxima - maxima.max(axis=-1, keepdims=True))
        rows.append((outs * (r / r.sum(axis=-1, keepdims=True))[..., None]).sum(axis=1))
    return np.stack(rows)


LENGTHS = {
    "one_each": (1, 16),
    "two_and_one": (17, 16),
    "as_many_as_lanes": (32 * SIZE, 31 * SIZE),
    "more_than_a_warp": (33 * SIZE, 1),
    "as_many_as_threads": (64 * SIZE, 63 * SIZE + 1),
    "more_than_threads": (65 * SIZE, 200 * SIZE - 3),
}


@pytest.mark.parametrize("spread", SPREADS.values(), ids=SPREADS)
@pytest.mark.parametrize("seq_lens", LENGTHS.values(), ids=LENGTHS)
def test_reduce_is_the_weighted_mean_of_the_partitions(
    seq_lens: tuple[int, ...], spread: float
) -> None:
    geometry, parts = invented(seq_lens, spread)
    np.testing.assert_allclose(reduced(geometry, parts), expected(parts), rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("largest", [0, 31, 32, 63, 64, 199])
def test_the_largest_maximum_is_found_wherever_it_is(largest: int) -> None:
    """Maxima 200 below it: every other exponential is 0, and with the wrong maximum infinite."""
    geometry, parts = invented((200 * SIZE,), 0.0)
    parts["max_logits"][..., largest] = 200.0
    out = reduced(geometry, parts)
    np.testing.assert_allclose(out, parts["tmp_out"][:, :, largest], rtol=1e-5)


@pytest.mark.parametrize("order", ["forward", "reverse", 3])
def test_warps_may_run_in_any_order(order: str | int) -> None:
    geometry, parts = invented(LENGTHS["more_than_threads"], 1.0)
    together = reduced(geometry, parts)
    assert torch.equal(reduced(geometry, parts, order=order), together)


@pytest.mark.parametrize(
    ("old", "new", "first"),
    [
        ("max_logit = max(max_logit, value)", "max_logit = value", 200.0),
        ("global_exp_sum += rescaled", "global_exp_sum = rescaled", 0.0),
        ("for j in range(num_partitions):", "for j in range(min(num_partitions, 64)):", 0.0),
    ],
)
def test_a_mistake_with_more_partitions_than_threads_is_seen(
    old: str, new: str, first: float
) -> None:
    """The decode steps of the ladder have fewer: there these three pass. first: a maximum."""
    geometry, parts = invented(LENGTHS["more_than_threads"], 1.0)
    parts["max_logits"][:, :, 0] = first
    out = reduced(geometry, parts, kernel=changed(reduce, old, new)(geometry))
    assert not np.allclose(out, expected(parts), rtol=1e-4, atol=2e-5)


def test_one_partition_is_copied_bit_for_bit() -> None:
    """Also where another sequence of the batch has more."""
    geometry, parts = invented((SIZE, 1, 3 * SIZE), 100.0)
    assert torch.equal(reduced(geometry, parts)[:2], parts["tmp_out"][:2, :, 0])


def test_a_head_of_more_elements_than_threads_is_whole() -> None:
    geometry, parts = invented((SIZE, 3 * SIZE), 1.0, head_size=256)
    np.testing.assert_allclose(reduced(geometry, parts), expected(parts), rtol=1e-4, atol=2e-5)


def test_a_geometry_without_partitions_is_refused() -> None:
    with pytest.raises(ValueError, match="partition_size is 0; it must be more"):
        reduce(Geometry(32, 16))


# Both kernels --------------------------------------------------------------------------------


def prepare(**options: object) -> Partitioned:
    return prepare_v2(*values(problem(seq_lens=(70, 33)).paged("vllm")), **options)


@pytest.mark.parametrize("partition_size", [16, 48, 512])
def test_any_partition_size_gives_the_same_output(partition_size: int) -> None:
    """It says how the tokens of one sequence are split, and nothing of GPUs."""
    whole = prepare(partition_size=512)
    whole.run()
    split = prepare(partition_size=partition_size)
    torch.testing.assert_close(split.run(), whole.out, rtol=1e-5, atol=1e-6)


def test_places_of_partitions_that_a_sequence_does_not_have_stay_nan() -> None:
    prepared = prepare(partition_size=16)
    prepared.simulate()
    missing = prepared.partitions.out.isnan().all(dim=-1)
    assert missing.any(dim=1).tolist() == [[False] * 5, [False] * 3 + [True] * 2]
    assert not prepared.out.isnan().any()


def test_a_launch_can_be_repeated_with_other_numbers_in_the_same_tensors() -> None:
    parts = values(problem(seq_lens=(70, 33)).paged("vllm"))
    prepared = prepare_v2(*parts, partition_size=32)
    prepared.run()
    parts[0].mul_(-2)
    fresh = prepare_v2(*parts, partition_size=32)
    assert torch.equal(prepared.run(), fresh.run())


def test_a_max_seq_len_with_room_changes_nothing() -> None:
    """As for a CUDA graph, which is captured once for the longest context."""
    paged = problem(seq_lens=(70, 33)).paged("vllm")
    wide = torch.nn.functional.pad(paged.block_tables, (0, 20))
    parts = values(dataclasses.replace(paged, block_tables=wide))
    out = paged_attention_v2(*parts, partition_size=32)
    assert torch.equal(paged_attention_v2(*parts, partition_size=32, max_seq_len=400), out)
