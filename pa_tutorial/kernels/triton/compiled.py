"""Compile the Triton kernels without a GPU, and read what the compiler decided.

Triton asks its driver which GPU there is. Here another object answers, with the GPU that we want;
the compiler and the assembler come with Triton. Nothing is run.
"""

import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import triton
from triton.backends.compiler import GPUTarget

from pa_tutorial.arguments import require_type
from pa_tutorial.kernels.triton.backend import TritonCall
from pa_tutorial.private_names import PLACE
from simt.compiling import Capability, checked_capability
from simt.gpus import WARP_SIZE

CUOBJDUMP = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"


@contextmanager
def compiling_for(capability: Capability, device: Hashable) -> Iterator[None]:
    """Inside, Triton sees this GPU; compiled kernels are cached for `device`."""
    major, minor = checked_capability(capability)
    driver = SimpleNamespace(  # everything that Triton asks its driver for
        get_current_target=lambda: GPUTarget("cuda", 10 * major + minor, WARP_SIZE),
        get_current_device=lambda: device,
        get_current_stream=lambda device: 0,
    )
    with mock.patch(PLACE["active"], driver):
        yield


@dataclass(frozen=True)
class TritonCompiled:
    """A kernel for one GPU.

    ttgir         Triton's intermediate form, in which every tile has a layout over the threads
    ptx           the assembly
    stack_bytes   per thread, in local memory: what didn't fit into the registers
    shared_bytes  per program
    """

    ttgir: str
    ptx: str
    stack_bytes: int
    shared_bytes: int

    def layout_of_tile(self, rows: int, columns: int) -> str:
        """How a tile of addresses of this size is spread over the threads that load from them.

        Raises ValueError if the kernel has no such tile, or several with different layouts.
        """
        names = set(re.findall(rf"tensor<{rows}x{columns}x!tt\.ptr<\w+>, #(\w+)>", self.ttgir))
        if len(names) != 1:
            found = f"{len(names)} layouts of tiles of {rows} x {columns} addresses"
            raise ValueError(f"the kernel has {found}; it must have one")
        return re.search(rf"^#{names.pop()} = #ttg\.(.*)$", self.ttgir, re.MULTILINE)[1]

    @property
    def copies(self) -> dict[int, int]:
        """Bytes -> number of instructions that copy as much from global to shared memory in the
        background (cp.async)."""
        pattern = r"cp\.async\.c[ag]\.shared\.global \[[^\]]*\], \[[^\]]*\], (\w+)"
        sizes = [int(size, 16) for size in re.findall(pattern, self.ptx)]
        return dict(sorted(Counter(sizes).items()))

    def count(self, pattern: str) -> int:
        """How often instructions whose names begin like this occur in the text."""
        return len(re.findall(rf"(?<![\w.%$]){re.escape(pattern)}", self.ptx))


def compile_call(call: TritonCall, capability: Capability = (9, 0)) -> TritonCompiled:
    """The kernel that this call would run on such a GPU; it takes about a second, once."""
    require_type(isinstance(call, TritonCall), "call", call, "a TritonCall")
    with compiling_for(capability, device=capability):
        kernel = call.kernel.warmup(**call.for_gpu, grid=call.grid)
    code = kernel.asm
    stack_bytes = stack_of(code["cubin"])
    return TritonCompiled(code["ttgir"], code["ptx"], stack_bytes, kernel.metadata.shared)


def stack_of(cubin: bytes) -> int:
    """Bytes of stack per thread."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(cubin)
        asked = [CUOBJDUMP, "-res-usage", path]
        said = subprocess.run(asked, capture_output=True, encoding="utf-8", check=True).stdout
    return int(re.search(r"STACK:(\d+)", said)[1])


def num_compilations(calls: list[TritonCall], capability: Capability = (9, 0)) -> int:
    """How often Triton would compile for these calls of one kernel; a call that differs only in
    run-time numbers needs no compilation. Nothing is compiled here."""
    keys, new_device = set(), object()

    def remember(key: str, **options: object) -> bool:
        keys.add(key)
        return True  # tells Triton not to compile it

    hook = mock.patch.object(triton.knobs.runtime, "jit_cache_hook", remember)
    require_type(isinstance(calls, Iterable), "calls", calls, "a list of TritonCalls")
    with compiling_for(capability, new_device), hook:
        for call in calls:
            require_type(isinstance(call, TritonCall), "calls", call, "TritonCalls")
            call.kernel.warmup(**call.for_gpu, grid=call.grid)
    return len(keys)
