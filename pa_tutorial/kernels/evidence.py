"""What the compiler makes of our kernels: asked now, or as it was recorded.

Registers and instructions change with the version of the compiler, and for macOS there is none.
So the answers of one version are kept in evidence.json. Where this version is installed, it is
asked; elsewhere the record is shown. Either way, the same is printed. `make refresh` records what
this machine's compiler says.
"""

import json
import re
from collections.abc import Callable
from dataclasses import asdict
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import numpy as np
import torch
from numba import cuda, float32, int32, uint32

from pa_tutorial.kernels.comparison import Row, comparison
from pa_tutorial.kernels.geometry import Geometry
from pa_tutorial.kernels.vectors import vector_access
from pa_tutorial.simt import ptx

FILE = Path(__file__).with_name("evidence.json")
COMPILER = ("numba-cuda", "llvmlite", "nvidia-nvvm", "nvidia-nvjitlink", "nvidia-cuda-nvrtc")
GEOMETRY = Geometry(128, 16, torch.float16)  # the reference sizes, on an H100 (sm_90)
ARRAY_FIELDS = ("meminfo", "parent", "size", "itemsize", "data", "shape", "strides")

load, store, _ = vector_access(8)


# Small kernels, to read what the compiler makes of them -----------------------------------------


@cuda.jit
def copy_elements(out, a):
    first = 8 * uint32(cuda.threadIdx.x)
    for e in range(8):
        out[first + e] = a[first + e]


@cuda.jit
def copy_vector(out, a):
    first = 8 * uint32(cuda.threadIdx.x)
    store(out, first, load(a, first))


@cuda.jit
def signed_index(out, a):
    t = cuda.threadIdx.x
    out[t] = a[t // 8]


@cuda.jit
def unsigned_index(out, a):
    t = uint32(cuda.threadIdx.x)
    out[t] = a[t // 8]


@cuda.jit
def unsigned_warp(out, n):
    warp_idx = uint32(cuda.threadIdx.x) // uint32(32)
    if warp_idx < n:
        out[warp_idx] = float32(1)


@cuda.jit
def signed_warp(out, n):
    warp_idx = int32(uint32(cuda.threadIdx.x) // uint32(32))
    if warp_idx < n:
        out[warp_idx] = float32(1)


_HALF, _FLOAT, _INT = np.zeros(256, np.float16), np.zeros(8, np.float32), np.int32(4)
SMALL: dict[Callable, tuple] = {
    copy_elements: (_HALF, _HALF),
    copy_vector: (_HALF, _HALF),
    signed_index: (_HALF, _HALF),
    unsigned_index: (_HALF, _HALF),
    unsigned_warp: (_FLOAT, _INT),
    signed_warp: (_FLOAT, _INT),
}


# Asked or recorded ------------------------------------------------------------------------------


def rows() -> list[Row]:
    """comparison(GEOMETRY): registers and loads of the kernel's versions; asked, some seconds."""
    return _asked_rows() if is_asked() else [_row(saved) for saved in recorded()["rows"]]


def assembly(kernel: Callable) -> str:
    """The instructions of one of the small kernels, in PTX: asked, a fifth of a second.

    A parameter has its name in Python: [a.data] is the address of a[0], [a.shape] its length.
    Raises KeyError for another kernel.
    """
    name = kernel.py_func.__name__
    if kernel not in SMALL:
        raise KeyError(f"{name} is not recorded; these are: {', '.join(map(_name, SMALL))}")
    return _asked_assembly(kernel) if is_asked() else recorded()["assembly"][name]


def origin() -> str:
    """Where the answers come from, on this machine."""
    words = ", ".join(f"{name} {number}" for name, number in recorded()["compiler"].items())
    if is_asked():
        return f"compiled on this machine with {words}"
    here = ", ".join(f"{name} {number}" for name, number in installed().items() if number)
    return f"as recorded with {words}; installed here: {here or 'no compiler'}"


def is_asked() -> bool:
    """Whether the compiler of the record is the one that is installed."""
    return installed() == recorded()["compiler"]


def installed() -> dict[str, str | None]:
    """The packages that a kernel goes through, with their versions; None: not here."""

    def found(name: str) -> str | None:
        try:
            return version(name)
        except PackageNotFoundError:
            return None

    return {name: found(name) for name in COMPILER}


@cache
def recorded() -> dict[str, object]:
    """What evidence.json holds."""
    return json.loads(FILE.read_text(encoding="utf-8"))


def record() -> None:
    """Write into evidence.json what the compiler says now. ImportError where there is none."""
    answers = {
        "compiler": installed(),
        "assembly": {_name(kernel): _asked_assembly(kernel) for kernel in SMALL},
        "rows": [asdict(row) for row in _asked_rows()],
    }
    FILE.write_text(json.dumps(answers, indent=1) + "\n", encoding="utf-8", newline="\n")
    recorded.cache_clear()


def _row(saved: dict) -> Row:
    def of_space(name: str) -> dict[int, int]:
        return {int(width): count for width, count in saved[name].items()}

    loads = {name: of_space(name) for name in ("global_loads", "shared_loads")}
    return Row(**(saved | loads))


@cache
def _asked_rows() -> list[Row]:
    return comparison(GEOMETRY)


@cache
def _asked_assembly(kernel: Callable) -> str:
    arguments = SMALL[kernel]
    text = ptx(kernel, *arguments)
    names = _parameters(kernel, arguments)
    body = text[text.index("{") + 1 : text.rindex("}")]
    body = re.sub(r"\[\w+_param_(\d+)\]", lambda found: f"[{names[int(found[1])]}]", body)
    lines = (" ".join(line.split()) for line in body.splitlines())
    return "\n".join(line for line in lines if line and not line.startswith(".reg"))


def _parameters(kernel: Callable, arguments: tuple) -> list[str]:
    """The parameters of the compiled kernel: an array (of one dimension) has seven."""
    names: list[str] = []
    for name, argument in zip(kernel.py_func.__code__.co_varnames, arguments, strict=False):
        is_array = isinstance(argument, np.ndarray)
        names += [f"{name}.{field}" for field in ARRAY_FIELDS] if is_array else [name]
    return names


def _name(kernel: Callable) -> str:
    return kernel.py_func.__name__
