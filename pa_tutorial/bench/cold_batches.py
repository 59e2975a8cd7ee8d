"""One pool of K and V on the device, and decode steps that read ever other parts of it.

A kernel that reads the same K and V again and again finds them in the L2 cache; a decode step of
a model does not. So a measurement goes round several steps that together are much larger.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from pa_tutorial.bench.batches import Arguments, empty_caches
from pa_tutorial.bench.device import Device
from pa_tutorial.kernels.geometry import divide_round_up

TIMES_L2 = 4  # how much larger than L2 all steps together are, at least


@dataclass(frozen=True)
class Workload:
    """A batch of decode steps whose sequences are equally long."""

    num_seqs: int
    seq_len: int
    num_heads: int = 32
    num_kv_heads: int = 32
    head_size: int = 128
    block_size: int = 16
    dtype: torch.dtype = torch.float16

    def __str__(self) -> str:
        dtype = str(self.dtype).removeprefix("torch.")
        return f"{self.num_seqs} x {self.seq_len}, {dtype}, {self.num_heads}/{self.num_kv_heads}"

    @property
    def blocks_per_seq(self) -> int:
        return divide_round_up(self.seq_len, self.block_size)

    @property
    def kv_bytes(self) -> int:
        """Of K and V of all sequences: what a step must read at least."""
        token = self.num_kv_heads * self.head_size * self.dtype.itemsize
        return 2 * self.num_seqs * self.seq_len * token

    def num_sets(self, device: Device) -> int:
        """How many such steps are more than TIMES_L2 times the L2 cache; at least 2."""
        return max(2, TIMES_L2 * device.l2_bytes // self.kv_bytes + 1)

    def num_blocks(self, device: Device) -> int:
        """Of a pool that has all of these steps."""
        return self.num_sets(device) * self.num_seqs * self.blocks_per_seq


class Pool:
    """Random K and V, in blocks, and as much memory again to copy them to.

    num_blocks  in each; workloads with the same kind of blocks share a pool
    """

    def __init__(self, like: Workload, num_blocks: int, device: Device) -> None:
        self.device = device
        shape = num_blocks, like.num_kv_heads, like.head_size, like.block_size
        self.k_cache, self.v_cache = empty_caches(*shape, like.dtype, device.where)
        for cache in (self.k_cache, self.v_cache):
            cache.normal_()
        self.copies = tuple(torch.empty_like(cache) for cache in (self.k_cache, self.v_cache))

    @staticmethod
    def num_bytes(like: Workload, num_blocks: int) -> int:
        """What a pool needs: K and V, twice."""
        block = like.num_kv_heads * like.head_size * like.block_size * like.dtype.itemsize
        return 4 * num_blocks * block

    def sets(self, workload: Workload) -> list[Arguments]:
        """Arguments of prepare_v1 for each step; no two steps have a block in common."""
        num_sets, of_a_set = workload.num_sets(self.device), self._blocks(workload)
        where = self.device.where
        blocks = torch.randperm(len(self.v_cache), device=where, dtype=torch.int32)
        lens = torch.full((workload.num_seqs,), workload.seq_len, dtype=torch.int32, device=where)
        heads = workload.num_seqs, workload.num_heads, workload.head_size
        return [
            {
                "q": torch.randn(heads, device=where).to(workload.dtype),
                "k_cache": self.k_cache,
                "v_cache": self.v_cache,
                "block_tables": blocks[i * of_a_set : (i + 1) * of_a_set].view(
                    workload.num_seqs, -1
                ),
                "seq_lens": lens,
                "scale": workload.head_size**-0.5,
                "max_seq_len": workload.seq_len,
            }
            for i in range(num_sets)
        ]

    def _blocks(self, workload: Workload) -> int:
        return workload.num_seqs * workload.blocks_per_seq

    def pieces(self, workload: Workload, i: int) -> tuple[Tensor, ...]:
        """K, V, and where they may be copied to: as many blocks as step i has, side by side."""
        of_a_set = self._blocks(workload)
        piece = slice(i * of_a_set, (i + 1) * of_a_set)
        return tuple(t[piece] for t in (self.k_cache, self.v_cache, *self.copies))

    def copy(self, workload: Workload, i: int) -> Callable[[], None]:
        """A plain copy of as much as step i reads: it moves every byte twice."""
        k, v, k_copy, v_copy = self.pieces(workload, i)

        def run() -> None:
            k_copy.copy_(k)
            v_copy.copy_(v)

        return run

    def contiguous(self, workload: Workload, i: int) -> tuple[Tensor, Tensor]:
        """The same memory as [num_seqs, num_kv_heads, seq_len, head_size]: no blocks at all."""
        shape = workload.num_seqs, workload.num_kv_heads, -1, workload.head_size
        k, v = self.pieces(workload, i)[:2]
        return k.reshape(shape), v.reshape(shape)
