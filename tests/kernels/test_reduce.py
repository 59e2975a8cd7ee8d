"""v2: the reduce kernel alone, on many invented partitions, and what is left for it."""

import numpy as np
import pytest
import torch

from pa_tutorial.kernels.geometry import Geometry
from pa_tutorial.kernels.template import made
from simt import launch

pytestmark = pytest.mark.cuda_v2
SIZE = 16  # tokens of a partition


def invented(
    seq_lens: tuple[int, ...], spread: float, head_size: int = 32
) -> tuple[Geometry, dict[str, torch.Tensor]]:
    """Partitions as the paged kernel would leave them; NaN where a sequence has none."""
    geometry = Geometry(head_size, 16, torch.float32, num_threads=64, partition_size=SIZE)
    rng = torch.Generator().manual_seed(0)
    of_a_head = (len(seq_lens), 2, -(-max(seq_lens) // SIZE))
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
        made("v2", **geometry.sizes).reduce_partitions,
        (num_heads, num_seqs),
        geometry.NUM_THREADS,
        *(out, *(parts[name] for name in ("exp_sums", "max_logits", "tmp_out", "seq_lens"))),
        shared_bytes=8 * num_partitions,
        unwritten="out",
        **options,
    )
    return out


def expected(parts: dict[str, torch.Tensor]) -> np.ndarray:
    """out = sum of tmp_out * r / sum of r, with r = exp_sum * exp(m - M), in float64."""
    names = ("exp_sums", "max_logits", "tmp_out")
    sums, maxima, outs = (parts[name].double().numpy() for name in names)
    r = sums * np.exp(maxima - np.nanmax(maxima, axis=2, keepdims=True))
    return np.nansum(outs * (r / np.nansum(r, axis=2, keepdims=True))[..., None], axis=2)


# Of 64 threads: two partitions and one, more than a warp, as many as threads, more than these.
LENGTHS = ((17, 16), (33 * SIZE, 1), (64 * SIZE, 63 * SIZE + 1), (65 * SIZE, 200 * SIZE - 3))


@pytest.mark.parametrize("spread", [1.0, 100.0], ids=["alike", "far_apart"])
@pytest.mark.parametrize("seq_lens", LENGTHS, ids=str)
def test_reduce_is_the_weighted_mean_of_the_partitions(
    seq_lens: tuple[int, ...], spread: float
) -> None:
    geometry, parts = invented(seq_lens, spread)
    out = reduced(geometry, parts)
    np.testing.assert_allclose(out, expected(parts), rtol=1e-4, atol=2e-5)
    assert torch.equal(reduced(geometry, parts, order=3), out), "in another order of the warps"


def test_one_partition_is_copied_bit_for_bit() -> None:
    """Also where another sequence of the batch has more, and a head more elements than threads."""
    geometry, parts = invented((SIZE, 1, 3 * SIZE), 100.0, head_size=256)
    out = reduced(geometry, parts)
    assert torch.equal(out[:2], parts["tmp_out"][:2, :, 0])
    np.testing.assert_allclose(out, expected(parts), rtol=1e-4, atol=2e-5)
