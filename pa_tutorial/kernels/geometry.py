"""Geometry: the compile-time constants of the paged kernel, each with its formula.

In vLLM they are template parameters and `constexpr` values. Here a kernel is made for one
Geometry: the numbers are known when it is compiled. Geometry says to the host what v1.py says to
the kernel; a test compares them.
Source: vLLM, csrc/attention/attention_kernels.cuh, paged_attention_kernel.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields

import torch

from pa_tutorial.arguments import require, require_type, whole_number
from pa_tutorial.paging.layouts import BLOCK_SIZES, DTYPES, HEAD_SIZES
from pa_tutorial.paging.quantization import FLOAT8
from simt.gpus import WARP_SIZE

NUM_THREADS = (64, 128, 256)  # vLLM has 128 only

VEC_BYTES = 16  # what a thread group reads from K at once, and one thread from V
FLOAT_BYTES = 4  # logits, partial results and sums are float32
FLT_MAX = float(torch.finfo(torch.float32).max)


def divide_round_up(a: int, b: int) -> int:
    return -(-a // b)


def constant(formula: str, value: Callable[["Geometry"], int]) -> property:
    """A constant that follows from the given ones. Its docstring is the formula."""
    return property(value, doc=formula)


@dataclass(frozen=True)
class Geometry:
    """The constants of one kernel. `print(geometry)` shows all of them.

    head_size            elements of one head of q, K, V and out
    block_size           tokens per block
    dtype                of q and out, and of the cache unless cache_dtype is given
    num_threads          per thread block; vLLM has 128
    partition_size       tokens per partition (v2); 0: one thread block reads the whole sequence
    num_queries_per_kv   query heads that share a KV head: num_heads / num_kv_heads
    cache_dtype          of an 8-bit cache: float8_e4m3fn or float8_e5m2; None: as q

    Raises TypeError or ValueError for unsupported values, naming the supported ones.
    """

    head_size: int
    block_size: int
    dtype: torch.dtype = torch.float16
    num_threads: int = 128
    partition_size: int = 0
    num_queries_per_kv: int = 1
    cache_dtype: torch.dtype | None = None

    def __post_init__(self) -> None:
        for field in fields(self):
            if "dtype" not in field.name:
                # 96.0 == 96, so the kernel made for one would be reused for the other.
                size = whole_number(field.name, getattr(self, field.name))
                object.__setattr__(self, field.name, size)
        for name, supported in (
            ("head_size", HEAD_SIZES),
            ("block_size", BLOCK_SIZES),
            ("dtype", DTYPES),
            ("num_threads", NUM_THREADS),
        ):
            value = getattr(self, name)
            is_supported = isinstance(value, type(supported[0])) and value in supported
            require(is_supported, name, value, f"one of {', '.join(map(str, supported))}")
        cached, allowed = self.cache_dtype, "None, as q" + "".join(f", or {one}" for one in FLOAT8)
        known = cached is None or (isinstance(cached, torch.dtype) and cached in FLOAT8)
        require(known, "cache_dtype", cached, allowed)
        whole, allowed = self.head_size % self.X == 0, f"a multiple of x, which is {self.X}"
        require(whole, "head_size", self.head_size, f"{allowed} for {cached}")
        whole_blocks = self.partition_size >= 0 and self.partition_size % self.block_size == 0
        allowed = f"0, or a multiple of block_size, which is {self.block_size}"
        require(whole_blocks, "partition_size", self.partition_size, allowed)
        ratio = self.num_queries_per_kv
        require(ratio >= 1, "num_queries_per_kv", ratio, "1 or more: num_heads / num_kv_heads")

    # Given --------------------------------------------------------------------------------------

    HEAD_SIZE = constant("given", lambda g: g.head_size)
    BLOCK_SIZE = constant("given", lambda g: g.block_size)
    NUM_THREADS = constant("given", lambda g: g.num_threads)
    PARTITION_SIZE = constant("given: tokens of a partition; 0 is v1", lambda g: g.partition_size)
    NUM_QUERIES_PER_KV = constant("num_heads / num_kv_heads", lambda g: g.num_queries_per_kv)

    @property
    def ITEMSIZE(self) -> int:
        """bytes of one element of q, and of K and V unless the cache is 8-bit"""
        return self.dtype.itemsize

    @property
    def CACHE_ITEMSIZE(self) -> int:
        """bytes of one element of K or V"""
        return (self.cache_dtype or self.dtype).itemsize

    @property
    def sizes(self) -> dict[str, object]:
        """The constants that a kernel's files are given: template.made(kernel, **geometry.sizes)"""
        names = "HEAD_SIZE", "BLOCK_SIZE", "NUM_QUERIES_PER_KV", "NUM_THREADS"
        sizes = {name: getattr(self, name) for name in names} | {"DTYPE": self.dtype}
        if self.PARTITION_SIZE:
            sizes["PARTITION_SIZE"] = self.PARTITION_SIZE
        if self.cache_dtype:
            sizes["CACHE_DTYPE"] = self.cache_dtype
        return sizes

    # Threads ------------------------------------------------------------------------------------

    NUM_WARPS = constant("NUM_THREADS / WARP_SIZE", lambda g: g.NUM_THREADS // WARP_SIZE)
    THREAD_GROUP_SIZE = constant(
        "max(WARP_SIZE / BLOCK_SIZE, 1): the threads that share one key token",
        lambda g: max(WARP_SIZE // g.BLOCK_SIZE, 1),
    )
    NUM_THREAD_GROUPS = constant(
        "NUM_THREADS / THREAD_GROUP_SIZE", lambda g: g.NUM_THREADS // g.THREAD_GROUP_SIZE
    )
    NUM_TOKENS_PER_THREAD_GROUP = constant(
        "ceil(BLOCK_SIZE / WARP_SIZE): tokens of one block that a group handles",
        lambda g: divide_round_up(g.BLOCK_SIZE, WARP_SIZE),
    )

    # q and K ------------------------------------------------------------------------------------

    VEC_SIZE = constant(
        "max(16 / (THREAD_GROUP_SIZE * itemsize of q), 1): a group reads 16 bytes of q at once",
        lambda g: max(VEC_BYTES // (g.THREAD_GROUP_SIZE * g.ITEMSIZE), 1),
    )
    NUM_ELEMS_PER_THREAD = constant(
        "HEAD_SIZE / THREAD_GROUP_SIZE", lambda g: g.HEAD_SIZE // g.THREAD_GROUP_SIZE
    )
    NUM_VECS_PER_THREAD = constant(
        "NUM_ELEMS_PER_THREAD / VEC_SIZE", lambda g: g.NUM_ELEMS_PER_THREAD // g.VEC_SIZE
    )

    @property
    def q_vecs_shape(self) -> tuple[int, int, int]:
        """q_vecs in shared memory: for each thread of a group, its vecs"""
        return self.THREAD_GROUP_SIZE, self.NUM_VECS_PER_THREAD, self.VEC_SIZE

    X = constant(
        "16 / itemsize of the cache: adjacent elements of K",
        lambda g: VEC_BYTES // g.CACHE_ITEMSIZE,
    )

    # V ------------------------------------------------------------------------------------------

    V_VEC_SIZE = constant(
        "min(16 / itemsize of q, BLOCK_SIZE): tokens of one row of V that a thread reads at once",
        lambda g: min(VEC_BYTES // g.ITEMSIZE, g.BLOCK_SIZE),
    )
    NUM_V_VECS_PER_ROW = constant(
        "BLOCK_SIZE / V_VEC_SIZE: lanes that share a row of V",
        lambda g: g.BLOCK_SIZE // g.V_VEC_SIZE,
    )
    NUM_ROWS_PER_ITER = constant(
        "WARP_SIZE / NUM_V_VECS_PER_ROW: rows that a warp reads at once",
        lambda g: WARP_SIZE // g.NUM_V_VECS_PER_ROW,
    )
    NUM_ROWS_PER_THREAD = constant(
        "ceil(HEAD_SIZE / NUM_ROWS_PER_ITER)",
        lambda g: divide_round_up(g.HEAD_SIZE, g.NUM_ROWS_PER_ITER),
    )

    # Who owns what ------------------------------------------------------------------------------

    def head_elements(self, thread_group_offset: int) -> tuple[int, ...]:
        """The elements of a head, of q and K, that one thread of a group multiplies.

        Whole vecs, THREAD_GROUP_SIZE apart: vec j of the thread is vec
        thread_group_offset + j * THREAD_GROUP_SIZE of the head.
        """
        size = self.THREAD_GROUP_SIZE
        whole_number("thread_group_offset", thread_group_offset, 0, size - 1)
        vecs = range(thread_group_offset, self.NUM_VECS_PER_THREAD * size, size)
        return tuple(vec * self.VEC_SIZE + e for vec in vecs for e in range(self.VEC_SIZE))

    def value_rows(self, lane: int) -> tuple[int, ...]:
        """The rows of V (elements of the head) that a lane sums in its accs."""
        lane = whole_number("lane", lane, 0, WARP_SIZE - 1)
        first = lane // self.NUM_V_VECS_PER_ROW
        return tuple(range(first, self.head_size, self.NUM_ROWS_PER_ITER))

    def value_tokens(self, lane: int) -> tuple[int, ...]:
        """The tokens of a block, by their offset, whose V a lane reads."""
        lane = whole_number("lane", lane, 0, WARP_SIZE - 1)
        first = lane % self.NUM_V_VECS_PER_ROW * self.V_VEC_SIZE
        return tuple(range(first, first + self.V_VEC_SIZE))

    # Shared memory ------------------------------------------------------------------------------

    @property
    def static_shared_bytes(self) -> int:
        """q_vecs and red_smem: HEAD_SIZE * itemsize + 2 * NUM_WARPS * 4"""
        return self.head_size * self.ITEMSIZE + 2 * self.NUM_WARPS * FLOAT_BYTES

    def dynamic_shared_bytes(self, max_seq_len: int) -> int:
        """What a launch must ask for: room for logits and, later in the same memory, out_smem.

            max(4 * padded_max_seq_len, (NUM_WARPS / 2) * HEAD_SIZE * 4)

        max_seq_len  length of the longest sequence of the batch; one launch has one size

        Source: vLLM, csrc/attention/paged_attention_v1.cu and _v2.cu.
        """
        max_seq_len = whole_number("max_seq_len", max_seq_len, least=0)
        tokens = self.partition_size or max_seq_len
        padded = divide_round_up(tokens, self.block_size) * self.block_size
        logits = padded * FLOAT_BYTES
        out_smem = self.NUM_WARPS // 2 * self.head_size * FLOAT_BYTES
        return max(logits, out_smem)

    def __str__(self) -> str:
        dtypes = [str(d).removeprefix("torch.") for d in (self.dtype, self.cache_dtype) if d]
        title = f"{', cache '.join(dtypes)}, WARP_SIZE = {WARP_SIZE}"
        width = max(map(len, CONSTANTS))
        formulas = {name: getattr(type(self), name).__doc__ for name in CONSTANTS}
        rows = (f"{n:<{width}}  {getattr(self, n):>4}  {text}" for n, text in formulas.items())
        return "\n".join([title, *rows])


# In the order in which they follow from one another. (vLLM uses sizeof() instead of ITEMSIZE.)
CONSTANTS = tuple(name for name in vars(Geometry) if name.isupper() and "ITEMSIZE" not in name)


def require_geometry(geometry: Geometry) -> None:
    require_type(isinstance(geometry, Geometry), "geometry", geometry, "a Geometry")
