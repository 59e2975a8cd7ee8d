"""The kernel's twin in CUDA C++, paged_attention.cu: to compile without a GPU, and to launch.

NVRTC compiles it, from the packages that numba-cuda[cu13] brings; no CUDA toolkit is needed.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

import numpy as np

from pa_tutorial.arguments import require
from pa_tutorial.kernels.compiled import (
    Capability,
    Compiled,
    arch,
    assembled,
    linked,
    require_compiler,
)
from pa_tutorial.kernels.geometry import VEC_BYTES, Geometry

SOURCE = Path(__file__).with_name("paged_attention.cu")
NAME = "paged_attention_kernel"


def macros(geometry: Geometry) -> dict[str, str]:
    """The geometry as the macros that paged_attention.cu asks for."""
    numbers = ("HEAD_SIZE", "BLOCK_SIZE", "NUM_THREADS", "PARTITION_SIZE", "NUM_QUERIES_PER_KV")
    scalar_t = str(geometry.dtype).removeprefix("torch.")
    return {"SCALAR_T": scalar_t, **{name: str(getattr(geometry, name)) for name in numbers}}


def twin_lto_ir(geometry: Geometry, capability: Capability) -> bytes:
    """C++ -> LTO IR, with fast arithmetic as in the Numba kernel. Raises ImportError where there
    is no compiler, cuda.core's NVRTCError with the compiler's words for a wrong text."""
    require_compiler()
    from cuda.core import Program, ProgramOptions

    options = ProgramOptions(
        arch=arch(capability),
        define_macro=list(macros(geometry).items()),
        link_time_optimization=True,
        std="c++17",
        use_fast_math=True,
    )
    program = Program(SOURCE.read_text(encoding="utf-8"), "c++", options)
    return bytes(program.compile("ltoir").code)


def compile_twin(geometry: Geometry, capability: Capability) -> Compiled:
    """The twin for one GPU, linked as a Numba kernel is. Errors: twin_lto_ir, assembled."""
    return assembled(twin_lto_ir(geometry, capability), capability)


# Launching ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Twin:
    """The twin for one geometry, launched as a Numba kernel is, with the same arguments:

        twin[grid, num_threads, stream, shared_bytes](*arguments)

    grid          (num_heads, num_seqs, max_num_partitions)
    num_threads   the geometry's NUM_THREADS; it is compiled in
    stream        the handle of a CUDA stream, as torch.cuda.current_stream().cuda_stream
    shared_bytes  geometry.dynamic_shared_bytes(max_seq_len), at most 48 KiB
    arguments     those of paged_attention's kernel; arrays are CUDA tensors of torch, or whatever
                  has a __cuda_array_interface__, and stay alive until the kernel has run

    Runs on the current device, for which it is compiled at the first launch.
    """

    geometry: Geometry

    def __getitem__(self, configuration: tuple) -> Callable[..., None]:
        return partial(self._launch, *configuration)

    def _launch(
        self,
        grid: tuple[int, int, int],
        num_threads: int,
        stream: int,
        shared_bytes: int,
        *arguments: object,
    ) -> None:
        from cuda.core import Device, LaunchConfig, Stream, launch

        device = Device()
        device.set_current()
        capability = device.compute_capability
        kernel = loaded(self.geometry, (capability.major, capability.minor))
        config = LaunchConfig(grid=grid, block=num_threads, shmem_size=shared_bytes)
        launch(Stream.from_handle(stream), config, kernel, *for_cpp(*arguments))


def twin_kernel(geometry: Geometry) -> Twin:
    """The twin in the place of paged_attention(geometry), for a GPU only.

    prepared = dataclasses.replace(prepare_v1(...), kernel=twin_kernel(geometry))
    """
    return Twin(geometry)


@cache
def loaded(geometry: Geometry, capability: Capability) -> object:
    """A cuda.core.Kernel, made once."""
    from cuda.core import ObjectCode

    code, _ = linked(twin_lto_ir(geometry, capability), capability, "cubin")
    return ObjectCode.from_cubin(code).get_kernel(NAME)


def for_cpp(*arguments: object) -> list[object]:
    """The arguments of the Numba kernel as C++ takes them, in its order and of its sizes.

    An array becomes its address; what a pointer does not tell, max_num_blocks_per_seq, comes last.
    cuda.core passes an int as 8 bytes: an address, or a long long.

    Raises ValueError for arrays with gaps that have no stride here, and for a cache whose vecs are
    not aligned.
    """
    *arrays, scale, block_tables, seq_lens, alibi_slopes, q_stride, block_stride, head_stride = (
        arguments
    )
    tables = {"block_tables": block_tables, "seq_lens": seq_lens, "alibi_slopes": alibi_slopes}
    for name, array in tables.items():
        require(is_contiguous(array), name, "an array with gaps", "contiguous: C++ sees a pointer")
    for name, array in zip(("k_cache", "v_cache"), arrays[4:], strict=True):
        past = f"{address(array) % VEC_BYTES} bytes past a multiple of {VEC_BYTES}"
        require(address(array) % VEC_BYTES == 0, name, past, "at a multiple: it is read by vecs")
    return [
        *map(address, arrays),
        np.float32(scale),
        *map(address, (block_tables, seq_lens, alibi_slopes)),
        *map(int, (q_stride, block_stride, head_stride)),
        np.int32(block_tables.shape[1]),
    ]


def is_contiguous(array: object) -> bool:
    if hasattr(array, "data_ptr"):
        return array.is_contiguous()
    return array.__cuda_array_interface__.get("strides") is None


def address(array: object) -> int:
    """Where the first element is, in the device's memory."""
    if hasattr(array, "data_ptr"):  # torch; its __cuda_array_interface__ does not know bfloat16
        return array.data_ptr()
    return array.__cuda_array_interface__["data"][0]
