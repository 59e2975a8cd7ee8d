"""The shapes of `make bench`: decode steps in float32 and 16 bits, and what memory has room for."""

import os
from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch

from pa_tutorial.arguments import require_heads
from pa_tutorial.kernels.geometry import divide_round_up

MOST_KV_BYTES = 2**30  # of K and V of one shape, and less where memory is short
# The pool, its token-major form, K and V side by side, and two copies to gather into; and room.
COPIES = 6


@dataclass(frozen=True)
class Shape:
    """One decode step.

    name      of a shape that the text speaks of, else the sweep that it belongs to
    seq_lens  tokens of each sequence, the newest included
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
        heads = f"{self.num_heads}/{self.num_kv_heads}"
        return (
            f"{self.name}: {len(self.seq_lens)} x {tokens}, {heads} heads of {self.head_size}, "
            f"{self.dtype_name}"
        )

    @property
    def dtype_name(self) -> str:
        return str(self.dtype).removeprefix("torch.")

    @property
    def is_even(self) -> bool:
        """Whether all sequences are equally long."""
        return len(set(self.seq_lens)) == 1

    @property
    def token_bytes(self) -> int:
        """Of K and V of one token."""
        return 2 * self.num_kv_heads * self.head_size * self.dtype.itemsize

    @property
    def kv_bytes(self) -> int:
        """Of K and V of all sequences: what a step must read at least."""
        return sum(self.seq_lens) * self.token_bytes

    @property
    def num_blocks(self) -> int:
        """Blocks of all sequences."""
        return sum(divide_round_up(seq_len, self.block_size) for seq_len in self.seq_lens)

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
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
MAIN = tuple(shape.of(dtype) for shape in (S1, GQA, B1) for dtype in DTYPES)

# On this one every stage runs, the simulated kernels included.
TINY = Shape("tiny", (64,), num_heads=4, num_kv_heads=2, head_size=64)

HEADS = ((16, 16), (32, 8), (32, 4), (32, 1))
HEADS_IN_16_BITS = ((16, 16), (32, 8))
HEAD_SIZES = (64, 128)
CONTEXTS = (128, 512, 2048, 8192, 32768, 131072)
BATCHES = (1, 4, 16, 64, 256)
CONTEXT_OF_BATCHES = 512


def sweeps(
    contexts: tuple[int, ...] = CONTEXTS,
    batches: tuple[int, ...] = BATCHES,
    head_sizes: tuple[int, ...] = HEAD_SIZES,
) -> list[Shape]:
    """One sequence of every length, and batches of every size, for all kinds of heads."""
    kinds = [(heads, torch.float32) for heads in HEADS]
    kinds += [(heads, torch.bfloat16) for heads in HEADS_IN_16_BITS]
    return [
        Shape(name, seq_lens, *heads, head_size, dtype)
        for heads, dtype in kinds
        for head_size in head_sizes
        for name, seq_lens in (
            *(("context", (seq_len,)) for seq_len in contexts),
            *(("batch", (CONTEXT_OF_BATCHES,) * num_seqs) for num_seqs in batches),
        )
    ]


def small(shape: Shape) -> Shape:
    """As many heads, of one size, and at most two sequences of 64 tokens: for a quick look."""
    return replace(shape, seq_lens=(64,) * min(2, len(shape.seq_lens)), head_size=64)


FULL = (TINY, *MAIN, *sweeps())
QUICK = (TINY, *map(small, MAIN), *sweeps(contexts=(128, 512), batches=(1, 4), head_sizes=(64,)))


def available_bytes() -> int:
    """Memory that is free now, as far as the system tells it; else half of all."""
    try:
        with open("/proc/meminfo", encoding="utf-8") as lines:
            for line in lines:
                if line.startswith("MemAvailable"):
                    return 1024 * int(line.split()[1])
    except OSError:
        pass  # no Linux
    if hasattr(os, "sysconf"):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    return 8 * MOST_KV_BYTES


def most_kv_bytes() -> int:
    """How large K and V of one shape may be on this machine."""
    return min(MOST_KV_BYTES, available_bytes() // COPIES)


def that_fit(shapes: Iterable[Shape], most_bytes: int) -> tuple[list[Shape], list[str]]:
    """The shapes whose K and V have at most so many bytes, and the others in words."""
    fitting, left_out = [], []
    for shape in shapes:
        if shape.kv_bytes <= most_bytes:
            fitting.append(shape)
        else:
            mebibytes = (shape.kv_bytes / 2**20, most_bytes / 2**20)
            left_out.append("{}: K and V are {:,.0f} MiB, over {:,.0f}".format(shape, *mebibytes))
    return fitting, left_out
