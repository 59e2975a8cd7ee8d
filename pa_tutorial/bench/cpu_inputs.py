"""Random decode steps in the plain layout, cold caches, and how fast memory can be read."""

from collections.abc import Callable
from functools import cached_property

import numba
import numpy as np
import torch
from numba import njit, prange
from torch import Tensor

from pa_tutorial.bench.cpu_shapes import Shape
from pa_tutorial.bench.processor import last_cache_bytes
from pa_tutorial.bench.timing import host_milliseconds
from pa_tutorial.kernels.geometry import divide_round_up


class ColdCaches:
    """Times one call after the caches were filled with something else.

    A decode step of a model finds weights in the caches, not the K and V of the step before.
    Memory of twice the last cache is written by all of torch's threads and then read by one:
    until it is done, the threads of the call before have gone to sleep.
    """

    def __init__(self, num_bytes: int | None = None) -> None:
        size = 2 * last_cache_bytes() if num_bytes is None else num_bytes
        self.memory = torch.zeros(size // 4)

    def flush(self) -> None:
        self.memory.fill_(1.0)
        self.memory.numpy().sum()

    def __call__(self, function: Callable[[], object]) -> float:
        """Milliseconds of one call; what comes before it is not counted."""
        self.flush()
        return host_milliseconds(function)


class Batch:
    """One decode step of a shape: q, K and V are N(0, 1), the blocks are shuffled.

    memory          [2, num_blocks, num_kv_heads, block_size, head_size]: K and V side by side.
                    The slots behind the last tokens are NaN, and so is the last block, with
                    which the tables are padded.
    """

    def __init__(self, shape: Shape, seed: int = 0) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.shape, num_seqs = shape, len(shape.seq_lens)
        block = shape.num_kv_heads, shape.block_size, shape.head_size
        self.memory = torch.empty(2, shape.num_blocks + 1, *block, dtype=shape.dtype)
        self.memory.normal_(generator=generator)
        self.k_cache, self.v_cache = self.memory
        q = torch.randn(num_seqs, shape.num_heads, shape.head_size, generator=generator)
        self.q = q.to(shape.dtype)
        self.seq_lens = torch.tensor(shape.seq_lens, dtype=torch.int32)
        self.scale = shape.head_size**-0.5
        self.block_tables = self._tables(generator)
        self.memory[:, -1] = float("nan")
        for table, seq_len in zip(self.block_tables, shape.seq_lens, strict=True):
            last, end = divmod(seq_len - 1, shape.block_size)
            self.memory[:, table[last], :, end + 1 :] = float("nan")

    def _tables(self, generator: torch.Generator) -> Tensor:
        """[num_seqs, longest in blocks] int32: every block of the pool once, in random order."""
        shape = self.shape
        lengths = [divide_round_up(seq_len, shape.block_size) for seq_len in shape.seq_lens]
        blocks = torch.randperm(shape.num_blocks, generator=generator).to(torch.int32)
        tables = torch.full((len(lengths), max(lengths)), shape.num_blocks, dtype=torch.int32)
        for table, own in zip(tables, blocks.split(lengths), strict=True):
            table[: len(own)] = own
        return tables

    @property
    def arguments(self) -> tuple:
        """Of every paged stage, in order."""
        return self.q, self.k_cache, self.v_cache, self.block_tables, self.seq_lens, self.scale

    @cached_property
    def contiguous(self) -> tuple[Tensor, Tensor]:
        """K and V [num_seqs, num_kv_heads, seq_len, head_size], of sequences equally long."""
        seq_len = self.shape.seq_lens[0]
        blocks = (cache[self.block_tables].transpose(1, 2) for cache in self.memory)
        k, v = (b.flatten(2, 3)[:, :, :seq_len].contiguous() for b in blocks)
        return k, v

    @cached_property
    def sequences(self) -> list[tuple[Tensor, Tensor, Tensor]]:
        """q [1, num_heads, head_size], K and V [seq_len, num_kv_heads, head_size] of each."""
        k, v = (kv.transpose(1, 2).contiguous() for kv in self.contiguous)
        return [(self.q[i : i + 1], k[i], v[i]) for i in range(len(self.q))]

    @cached_property
    def token_major(self) -> tuple[Tensor, Tensor]:
        """K and V of the pool, [num_blocks, block_size, num_kv_heads, head_size]."""
        k, v = (cache.transpose(1, 2).contiguous() for cache in self.memory)
        return k, v

    @cached_property
    def words(self) -> np.ndarray:
        """As much of the pool as the step has to read, as whole numbers of 8 bytes."""
        return (
            self.memory.view(torch.uint8)
            .view(-1)[: self.shape.kv_bytes // 8 * 8]
            .view(torch.int64)
            .numpy()
        )


@njit(parallel=True, cache=True)
def read_once(words, num_threads):
    """The sum of all words. Each thread reads a part of its own, at four places at once."""
    sums = np.zeros(num_threads, np.int64)
    for thread in prange(num_threads):
        start = thread * len(words) // num_threads
        part = words[start : (thread + 1) * len(words) // num_threads]
        quarter = len(part) // 4
        a, b, c, d = (
            part[:quarter],
            part[quarter : 2 * quarter],
            part[2 * quarter : 3 * quarter],
            part[3 * quarter : 4 * quarter],
        )
        sum_a = sum_b = sum_c = sum_d = 0
        for i in range(quarter):
            sum_a += a[i]
            sum_b += b[i]
            sum_c += c[i]
            sum_d += d[i]
        sums[thread] = sum_a + sum_b + sum_c + sum_d
    return sums.sum()


def reading(batch: Batch) -> Callable[[], int]:
    """A function that reads as many bytes as the step has of K and V, once, on all cores."""
    words, num_threads = batch.words, numba.get_num_threads()
    return lambda: read_once(words, num_threads)
