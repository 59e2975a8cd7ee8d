"""Run paged_attention.cu on a CPU: the file as it is, with cuda_on_the_host.h before it."""

import ctypes
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from functools import cache
from itertools import count
from pathlib import Path

import numpy as np
from absent import CPP_COMPILER
from torch import Tensor

from pa_tutorial.kernels.cpp_twin import SOURCE, for_cpp, macros
from pa_tutorial.kernels.geometry import Geometry
from pa_tutorial.kernels.launch import Launch

FLAGS = ("-std=c++20", "-O1", "-pthread", "-fPIC", "-fno-strict-aliasing")
TEMPORARY = tempfile.TemporaryDirectory(prefix="paged_attention_", ignore_cleanup_errors=True)
FOLDER = Path(TEMPORARY.name)  # is removed with TEMPORARY, at the end
NUMBERS = count(1)

# What the kernel's file leaves open, and a way to call it.
REST = """
float to_float(float16 element) { return half_to_float(element.bits); }
void from_float(float16& element, float value) { element.bits = float_to_half(value); }

Vec<float, 4> dynamic_shared_memory[MAX_SHARED_BYTES / 16];

extern "C" int launch(const int* grid, int num_threads, int shared_bytes, void** arguments) {
  return on_the_host(paged_attention_kernel, {grid[0], grid[1], grid[2]}, num_threads,
                     reinterpret_cast<float*>(dynamic_shared_memory), shared_bytes, arguments);
}
"""


@cache
def header() -> Path:
    """cuda_on_the_host.h in a folder of its own, read by the compiler once for all kernels."""
    header = FOLDER / "cuda_on_the_host.h"
    shutil.copy(Path(__file__).with_name(header.name), header)
    compile_cpp(["-x", "c++-header", str(header), "-o", f"{header}.gch"])
    return header


def compile_cpp(options: list[str]) -> None:
    done = subprocess.run([CPP_COMPILER, *FLAGS, *options], capture_output=True, encoding="utf-8")
    assert done.returncode == 0, done.stderr


@cache
def compiled_for_host(geometry: Geometry, text: str) -> Callable[..., int]:
    """The kernel of this text as a C function; half a second. AssertionError if it is wrong."""
    source = FOLDER / f"kernel_{next(NUMBERS)}.cpp"
    library = source.with_suffix(".so")
    source.write_text(text + REST, encoding="utf-8")
    defined = [f"-D{name}={value}" for name, value in macros(geometry).items()]
    compile_cpp([*defined, "-shared", "-include", str(header()), str(source), "-o", str(library)])
    return ctypes.CDLL(str(library)).launch


def run_on_the_host(prepared: Launch, text: str | None = None) -> Tensor:
    """The output of a launch; text: in place of paged_attention.cu. Errors: run_with."""
    c_arguments = [as_c(value) for value in for_cpp(*prepared.kernel_arguments)]
    pointers = (ctypes.c_void_p * len(c_arguments))(*map(ctypes.addressof, c_arguments))
    sizes = prepared.grid, prepared.geometry.NUM_THREADS, prepared.shared_bytes
    run_with(prepared.geometry, *sizes, ctypes.addressof(pointers), text)
    return prepared.out


def as_c(value: object) -> ctypes.Structure:
    """A number of the size that cuda.core gives it: an int has 8 bytes."""
    types = {np.float32: ctypes.c_float, np.int32: ctypes.c_int32, int: ctypes.c_int64}
    return types[type(value)](value)


def run_with(
    geometry: Geometry,
    grid: tuple[int, int, int],
    num_threads: int,
    shared_bytes: int,
    pointers: int,
    text: str | None = None,
) -> None:
    """Run the kernel; pointers: the address of an array with the addresses of its arguments.

    AssertionError if a thread block writes behind its dynamic shared memory.
    """
    launch = compiled_for_host(
        geometry, SOURCE.read_text(encoding="utf-8") if text is None else text
    )
    overruns = launch(
        (ctypes.c_int * 3)(*grid), num_threads, shared_bytes, ctypes.c_void_p(pointers)
    )
    assert overruns == 0, f"{overruns} thread blocks wrote behind their shared memory"
