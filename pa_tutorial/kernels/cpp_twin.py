"""The kernel's twin in CUDA C++, paged_attention.cu, which `make gpu` times beside it.

NVRTC compiles it, from the packages that numba-cuda[cu13] brings; no CUDA toolkit is needed.
"""

from collections.abc import Callable
from functools import cache, partial
from pathlib import Path

import numpy as np
from torch import Tensor

from pa_tutorial.arguments import require
from pa_tutorial.kernels.compiler_report import Capability, arch, linked
from pa_tutorial.kernels.geometry import Geometry

SOURCE = Path(__file__).with_name("paged_attention.cu")
MACROS = ("HEAD_SIZE", "BLOCK_SIZE", "NUM_THREADS", "PARTITION_SIZE", "NUM_QUERIES_PER_KV")


class Twin:
    """The twin of paged_attention(geometry), for a GPU only, launched as a Numba kernel is:

        twin[grid, num_threads, stream, shared_bytes](*arguments)

    stream        the handle of a CUDA stream, as torch.cuda.current_stream().cuda_stream
    shared_bytes  at most 48 KiB
    arguments     those of paged_attention's kernel, read by vecs; they stay alive until it has run

    Runs on the current device, for which it is compiled at the first launch.
    """

    def __init__(self, geometry: Geometry) -> None:
        self.geometry = geometry

    def __getitem__(self, configuration: tuple) -> Callable[..., None]:
        return partial(self._launch, *configuration)

    def _launch(
        self, grid: tuple, num_threads: int, stream: int, shared_bytes: int, *arguments: object
    ) -> None:
        from cuda.core import Device, LaunchConfig, Stream, launch

        device = Device()
        device.set_current()
        capability = device.compute_capability
        kernel = loaded(self.geometry, (capability.major, capability.minor))
        config = LaunchConfig(grid=grid, block=num_threads, shmem_size=shared_bytes)
        launch(Stream.from_handle(stream), config, kernel, *for_cpp(*arguments))


def cubin(geometry: Geometry, capability: Capability) -> bytes:
    """Machine code, with fast arithmetic as in the Numba kernel."""
    from cuda.core import Program, ProgramOptions

    macros = {name: str(getattr(geometry, name)) for name in MACROS}
    macros["SCALAR_T"] = str(geometry.dtype).removeprefix("torch.")
    options = ProgramOptions(
        arch=arch(capability),
        define_macro=list(macros.items()),
        link_time_optimization=True,
        std="c++17",
        use_fast_math=True,
    )
    program = Program(SOURCE.read_text(encoding="utf-8"), "c++", options)
    return linked(bytes(program.compile("ltoir").code), capability, "cubin")[0]


@cache
def loaded(geometry: Geometry, capability: Capability) -> object:
    """A cuda.core.Kernel, made once."""
    from cuda.core import ObjectCode

    return ObjectCode.from_cubin(cubin(geometry, capability)).get_kernel("paged_attention_kernel")


def for_cpp(*arguments: object) -> list[object]:
    """The arguments of the Numba kernel as C++ takes them, in its order and of its sizes.

    A tensor becomes its address; what a pointer does not tell, max_num_blocks_per_seq, comes last.
    cuda.core passes an int as 8 bytes: an address, or a long long.
    """
    tensors = [a for a in arguments if isinstance(a, Tensor)]
    block_tables = next(tensor for tensor in tensors if tensor.dim() == 2)
    dense = all(tensor.is_contiguous() for tensor in tensors)
    require(dense, "arguments", "arrays with gaps", "contiguous: C++ sees pointers")
    sent = [a.data_ptr() if isinstance(a, Tensor) else a for a in arguments]
    return [*sent, np.int32(block_tables.shape[1])]
