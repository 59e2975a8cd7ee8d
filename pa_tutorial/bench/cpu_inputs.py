"""Random decode steps in the plain layout, cold caches, and how fast memory can be read."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import numba
import numpy as np
import torch
from numba import njit, prange
from torch import Tensor

from pa_tutorial.arguments import require_heads
from pa_tutorial.bench.this_machine import last_cache_bytes
from pa_tutorial.bench.timing import host_milliseconds
from pa_tutorial.kernels.geometry import VEC_BYTES, divide_round_up
from pa_tutorial.paging.layouts import DTYPES

Step = Callable[[], Tensor]  # one decode step: [num_seqs, num_heads, head_size]


@dataclass(frozen=True)
class Shape:
    """One decode step.

    name      name of a shape that the text mentions, else of the sweep that it belongs to
    seq_lens  tokens of each sequence, including the newest
    """

    name: str
    seq_lens: tuple[int, ...]
    num_heads: int
    num_kv_heads: int
    head_size: int
    dtype: torch.dtype = torch.float32
    block_size: int = 16

    def __post_init__(self) -> None:
        require_heads(self.num_heads, self.num_kv_heads)

    def __str__(self) -> str:
        longest, shortest = max(self.seq_lens), min(self.seq_lens)
        tokens = f"{longest}" if longest == shortest else f"{shortest} to {longest}"
        heads = f"{self.num_heads}/{self.num_kv_heads} heads of {self.head_size}"
        return f"{self.name}: {len(self.seq_lens)} x {tokens}, {heads}, {self.dtype_name}"

    @property
    def dtype_name(self) -> str:
        return str(self.dtype).removeprefix("torch.")

    @property
    def kv_bytes(self) -> int:
        """Bytes of K and V of all sequences, the least that a step must read."""
        return 2 * sum(self.seq_lens) * self.num_kv_heads * self.head_size * self.dtype.itemsize

    @property
    def lens_in_blocks(self) -> list[int]:
        return [divide_round_up(seq_len, self.block_size) for seq_len in self.seq_lens]

    def of(self, dtype: torch.dtype) -> "Shape":
        """The same shape in another dtype."""
        return replace(self, dtype=dtype)

    def as_row(self) -> dict[str, object]:
        """For the JSON file; seq_len is the longest of a batch of different lengths."""
        return {
            "name": self.name,
            "num_seqs": len(self.seq_lens),
            "seq_len": max(self.seq_lens),
            "shortest_seq_len": min(self.seq_lens),
            "num_heads": self.num_heads,
            "num_kv_heads": self.num_kv_heads,
            "head_size": self.head_size,
            "block_size": self.block_size,
            "dtype": self.dtype_name,
        }


S1 = Shape("S1", (2048,) * 8, num_heads=16, num_kv_heads=16, head_size=128)
GQA = Shape("GQA", (2048,) * 8, num_heads=32, num_kv_heads=8, head_size=128)
B1 = Shape("B1", (8192,), num_heads=16, num_kv_heads=16, head_size=64)

MAIN = tuple(shape.of(dtype) for shape in (S1, GQA, B1) for dtype in DTYPES)


class ColdCaches:
    """Times one call after filling the caches with other data.

    In a model, a decode step finds weights in the caches, not K and V from the previous step.
    All of torch's threads write memory of twice the last cache's size, then one thread reads it;
    by then the threads of the previous call have gone to sleep.
    """

    def __init__(self, num_bytes: int | None = None) -> None:
        size = 2 * last_cache_bytes() if num_bytes is None else num_bytes
        self.memory = torch.zeros(size // 4)

    def flush(self) -> None:
        self.memory.fill_(1.0)
        self.memory.numpy().sum()

    def __call__(self, function: Callable[[], object]) -> float:
        """Milliseconds of one call, without filling the caches."""
        self.flush()
        return host_milliseconds(function)


class Batch:
    """One decode step of a shape: q, K and V are N(0, 1), the blocks are shuffled.

    memory          [2, num_blocks, num_kv_heads, block_size, head_size]: K, then V. The slots
                    past the last tokens are NaN, and so is the last block, which pads the tables.
    """

    def __init__(self, shape: Shape, seed: int = 0, device: str = "cpu") -> None:
        random = {"generator": torch.Generator(device).manual_seed(seed), "device": device}
        self.shape, num_seqs = shape, len(shape.seq_lens)
        block = shape.num_kv_heads, shape.block_size, shape.head_size
        num_blocks = sum(shape.lens_in_blocks)
        self.memory = torch.empty(2, num_blocks + 1, *block, dtype=shape.dtype, device=device)
        self.memory.normal_(generator=random["generator"])
        self.k_cache, self.v_cache = self.memory
        q = torch.randn(num_seqs, shape.num_heads, shape.head_size, **random)
        self.q, self.scale = q.to(shape.dtype), shape.head_size**-0.5
        self.seq_lens = torch.tensor(shape.seq_lens, dtype=torch.int32, device=device)
        self.block_tables = self._tables(random)
        self.memory[:, -1] = float("nan")
        for table, seq_len in zip(self.block_tables, shape.seq_lens, strict=True):
            last, end = divmod(seq_len - 1, shape.block_size)
            self.memory[:, table[last], :, end + 1 :] = float("nan")

    def _tables(self, random: dict[str, object]) -> Tensor:
        lens, num_blocks = self.shape.lens_in_blocks, self.memory.shape[1] - 1
        tables = self.seq_lens.new_full((len(lens), max(lens)), num_blocks)
        blocks = torch.randperm(num_blocks, **random).split(lens)
        for table, own in zip(tables, blocks, strict=True):
            table[: len(own)] = own
        return tables

    @property
    def arguments(self) -> tuple:
        """Arguments of every stage that reads the plain layout, in order."""
        return self.q, self.k_cache, self.v_cache, self.block_tables, self.seq_lens, self.scale

    @cached_property
    def vllm_arguments(self) -> tuple:
        """Arguments of every stage that reads vLLM's layout, with a copy of the cache in it."""
        x = VEC_BYTES // self.shape.dtype.itemsize
        k_cache = self.k_cache.unflatten(-1, (-1, x)).transpose(2, 3).contiguous()
        return self.q, k_cache, self.v_cache.mT.contiguous(), *self.arguments[3:]

    @cached_property
    def contiguous(self) -> tuple[Tensor, Tensor]:
        """K and V [num_seqs, num_kv_heads, seq_len, head_size], for sequences of equal length."""
        seq_len = self.shape.seq_lens[0]
        blocks = (cache[self.block_tables].transpose(1, 2) for cache in self.memory)
        k, v = (b.flatten(2, 3)[:, :, :seq_len].contiguous() for b in blocks)
        return k, v

    @cached_property
    def token_major(self) -> tuple[Tensor, Tensor]:
        """K and V of the pool, [num_blocks, block_size, num_kv_heads, head_size]."""
        k, v = (cache.transpose(1, 2).contiguous() for cache in self.memory)
        return k, v

    @cached_property
    def words(self) -> np.ndarray:
        """As much of the pool as the step must read, as 8-byte integers."""
        memory = self.memory.view(torch.uint8).view(-1)
        return memory[: self.shape.kv_bytes // 8 * 8].view(torch.int64).numpy()


@njit(parallel=True)
def read_once(words, num_threads):
    """The sum of all words. Each thread reads its own part, at four places at once."""
    sums = np.zeros(num_threads, np.int64)
    for thread in prange(num_threads):
        start = thread * len(words) // num_threads
        part = words[start : (thread + 1) * len(words) // num_threads]
        quarter = len(part) // 4
        sum_a = sum_b = sum_c = sum_d = 0
        for i in range(quarter):
            sum_a += part[i]
            sum_b += part[quarter + i]
            sum_c += part[2 * quarter + i]
            sum_d += part[3 * quarter + i]
        sums[thread] = sum_a + sum_b + sum_c + sum_d
    return sums.sum()


def reading(batch: Batch) -> Callable[[], int]:
    """A function that reads as many bytes as the step's K and V have, once, on all cores."""
    words, num_threads = batch.words, numba.get_num_threads()
    return lambda: read_once(words, num_threads)
