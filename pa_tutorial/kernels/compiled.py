"""Compile the paged kernels without a GPU, and read what the compiler made of them.

As Numba does at a launch: Python -> LTO IR -> nvJitLink -> machine code, with or without fastmath
as the kernel's decorator says.
"""

import re
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from types import SimpleNamespace
from unittest import mock

import torch
from numba import cuda, types

from pa_tutorial.kernels.geometry import Geometry
from pa_tutorial.private_names import PLACE

Capability = tuple[int, int]
CAPABILITIES: tuple[Capability, ...] = ((8, 0), (9, 0))
# How the elements of an array are kept; Numba has no bfloat16.
STORED = {torch.float32: types.float32, torch.float16: types.float16, torch.bfloat16: types.uint16}

SPACES = ("global", "shared", "local", "const", "param")
GENERIC = "generic"  # the address says which space it is, when the kernel runs


@dataclass(frozen=True)
class Compiled:
    """A kernel for one GPU. Bytes are those of one thread.

    ptx          the assembly after linking, which the registers are counted for
    stack_bytes  local memory: arrays that are not in registers
    spill_bytes  stored and loaded because the registers did not suffice
    """

    ptx: str
    registers: int
    stack_bytes: int
    spill_bytes: int

    @property
    def loads(self) -> dict[tuple[str, int], int]:
        """(space, bytes) -> instructions in the text that load so much at once."""
        return loads_of(self.ptx)

    @property
    def num_doubles(self) -> int:
        """Instructions on float64. A bare 1.0 in a kernel is one."""
        return self.ptx.count(".f64")

    @property
    def num_exact(self) -> int:
        """Divisions and roots that are exactly rounded; with fastmath they are approximate."""
        return len(re.findall(r"\b(?:div|rcp|sqrt)\.rn(?:\.ftz)?\.f32", self.ptx))

    @property
    def num_local(self) -> int:
        """Loads from and stores to local memory."""
        return len(re.findall(r"\b(?:ld|st)\.local", self.ptx))


def loads_of(ptx: str) -> dict[tuple[str, int], int]:
    """The loads of a piece of PTX, counted by memory space and width: (space, bytes) -> count.

    An instruction in a loop counts once. One without a space counts as GENERIC.

    Raises ValueError for a load whose width is not understood.
    Source: NVIDIA, PTX ISA, "Data Movement and Conversion Instructions: ld".
    """
    words = re.findall(r"(?<![\w.%$])ld((?:\.[\w:]+)+)\s", ptx)
    return dict(sorted(Counter(_space_and_bytes(word[1:].split(".")) for word in words).items()))


def _space_and_bytes(words: list[str]) -> tuple[str, int]:
    """What follows `ld`, as in ["global", "nc", "L1::no_allocate", "v4", "u16"]: 8 bytes."""
    spaces = [word.split("::")[0] for word in words if word.split("::")[0] in SPACES]
    item = re.fullmatch(r"[busf](\d+)", words[-1])
    if item is None:
        raise ValueError(f"ld.{'.'.join(words)} is a load of unknown width")
    vector = re.fullmatch(r"v(\d)", words[-2]) if len(words) > 1 else None
    length = int(vector.group(1)) if vector else 1
    return (spaces[0] if spaces else GENERIC), length * int(item.group(1)) // 8


# Signatures --------------------------------------------------------------------------------------


def array(item: types.Type, ndim: int = 1) -> types.Array:
    """The type of a C array in a signature."""
    return types.Array(item, ndim, "C")


def v1_signature(geometry: Geometry) -> tuple[types.Type, ...]:
    """The types of the arguments of paged_attention's kernel."""
    stored, of_float = array(STORED[geometry.dtype]), array(types.float32)
    return (
        *(of_float, of_float),  # exp_sums, max_logits
        *(stored, stored, stored, stored),  # out, q, k_cache, v_cache
        types.float32,  # scale
        *(array(types.int32, 2), array(types.int32), of_float),  # block_tables, seq_lens, slopes
        *(types.int64, types.int64, types.int64),  # q_stride, kv_block_stride, kv_head_stride
    )


def reduce_signature(geometry: Geometry) -> tuple[types.Type, ...]:
    """The types of the arguments of reduce's kernel."""
    stored, of_float = array(STORED[geometry.dtype]), array(types.float32)
    return (stored, of_float, of_float, stored, array(types.int32), types.int64)


def naive_signature(geometry: Geometry) -> tuple[types.Type, ...]:
    """The types of the arguments of naive_kernel."""
    stored = STORED[geometry.dtype]
    tensors = tuple(array(stored, ndim) for ndim in (3, 3, 5, 4))  # out, q, k_cache, v_cache
    numbers = array(types.int32, 2), array(types.int32), array(types.float32)
    return (*tensors, types.float32, *numbers)


# Compiling ---------------------------------------------------------------------------------------


def require_compiler() -> None:
    """Raise ImportError, with what to install, unless the compiler and the linker are here."""
    # In this order: with numba-cuda comes the package `cuda`, which find_spec asks for its core.
    if find_spec("numba_cuda") is None or find_spec("cuda.core") is None:
        raise ImportError(
            "there is no CUDA compiler here: it comes with `pip install 'numba-cuda[cu13]'`, for "
            "Linux and Windows (there are no wheels for macOS). No GPU is needed"
        )


def lto_ir(kernel: Callable, signature: tuple[types.Type, ...], capability: Capability) -> bytes:
    """A @cuda.jit kernel as the linker takes it. ImportError where there is no compiler."""
    require_compiler()

    # Device functions ask for "the current device" while they are compiled; there is none.
    device = SimpleNamespace(compute_capability=capability)
    with (
        mock.patch(PLACE["get_current_device"], return_value=device),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        code, _ = cuda.compile(
            kernel.py_func,
            signature,
            device=False,
            fastmath=kernel.targetoptions["fastmath"],
            abi="numba",
            cc=capability,
            output="ltoir",
        )
    return code


def linked(code: bytes, capability: Capability, target: str) -> tuple[bytes, str]:
    """ "ptx" or "cubin" of LTO IR, and what the linker has to say."""
    from cuda.core import Linker, LinkerOptions, ObjectCode

    options = LinkerOptions(
        arch=arch(capability),
        link_time_optimization=True,
        ptx=target == "ptx" or None,
        ptxas_options=["-v"],
    )
    linker = Linker(ObjectCode.from_ltoir(code), options=options)
    result = linker.link(target)
    return bytes(result.code), linker.get_info_log()


def arch(capability: Capability) -> str:
    """(9, 0) -> "sm_90" """
    return f"sm_{capability[0]}{capability[1]}"


def assembled(code: bytes, capability: Capability) -> Compiled:
    """LTO IR to machine code. RuntimeError if the linker does not say what it used."""
    ptx, _ = linked(code, capability, "ptx")
    _, log = linked(code, capability, "cubin")

    def found(pattern: str) -> list[int]:
        match = re.search(pattern, log)
        if match is None:
            raise RuntimeError(f"the linker's log does not say {pattern!r}:\n{log}")
        return [int(number) for number in match.groups()]

    (registers,) = found(r"Used (\d+) registers")
    (stack,) = found(r"(\d+) bytes stack frame")
    spills = found(r"(\d+) bytes spill stores, (\d+) bytes spill loads")
    return Compiled(ptx.decode(), registers, stack, sum(spills))


def compiled(
    kernel: Callable, signature: tuple[types.Type, ...], capability: Capability
) -> Compiled:
    """Compile a @cuda.jit kernel for one GPU; some seconds, once. Errors: lto_ir, assembled."""
    require_compiler()
    return _compiled(kernel, signature, capability)


@cache
def _compiled(
    kernel: Callable, signature: tuple[types.Type, ...], capability: Capability
) -> Compiled:
    return assembled(lto_ir(kernel, signature, capability), capability)
