"""What Numba's compiler says about a kernel, without a GPU.

The simulator understands a little more Python than Numba does, so a kernel is never just
simulated; it is compiled as well.
"""

import os
import re
import sys
import warnings
from collections.abc import Callable, Iterable
from functools import lru_cache
from importlib.util import find_spec
from types import CellType, FunctionType, ModuleType, SimpleNamespace
from unittest import mock

from simt.arguments import require, require_type, whole_number
from simt.kernel_arguments import arrays_of, function_of, named
from simt.private_names import PLACE
from simt.signatures import declared, types_of
from simt.tuples import flattened, refilled

Capability = tuple[int, int]


def compile_ptx(
    kernel: Callable,
    *args: object,
    compute_capability: Capability = (9, 0),
    lineinfo: bool = False,
) -> str:
    """The PTX (NVIDIA's assembly language) that Numba generates for these arguments.

    kernel              a @cuda.jit kernel, or its plain function
    args                as for `launch`; only their types matter, or its signature's
    compute_capability  the GPU to compile for, (8, 0) or (9, 0) for example
    lineinfo            note in the text, as .loc, which line an instruction was made of
    returns             PTX as text

    Raises numba's TypingError and related errors where Numba rejects the kernel; TypeError for
    arguments that no launch accepts; ValueError for a GPU that the compiler doesn't know;
    ImportError where the compiler isn't installed (numba-cuda has no wheels for macOS).
    """
    require_compiler()
    function = function_of(kernel)
    by_name = named(function, args)
    parts = flattened(by_name)
    parts |= arrays_of(parts)
    signature = types_of(kernel, [refilled(name, v, parts) for name, v in by_name.items()])
    return _compiled(kernel, signature, compute_capability, lineinfo)


def require_compiler() -> None:
    """Raise ImportError, saying what to install, where there is no compiler."""
    # In this order, because find_spec("cuda.core") imports `cuda`, which comes with numba-cuda.
    if find_spec("numba_cuda") is None or find_spec("cuda.core") is None:
        raise ImportError(
            "there is no CUDA compiler here; install it with `pip install 'numba-cuda[cu13]'` on "
            "Linux or Windows (there are no wheels for macOS). It needs no GPU"
        )


def checked_capability(capability: Capability, name: str = "capability") -> Capability:
    """Raises TypeError or ValueError for anything but a pair of whole numbers."""
    allowed = "two whole numbers, such as (9, 0)"
    require_type(isinstance(capability, tuple | list), name, capability, allowed)
    require(len(capability) == 2, name, capability, allowed)
    major, minor = (whole_number(f"{name}[{i}]", n, 0) for i, n in enumerate(capability))
    return major, minor


@lru_cache(maxsize=64)  # as Numba compiles a kernel once for the types of its arguments
def _compiled(
    kernel: Callable, signature: tuple, compute_capability: Capability, lineinfo: bool
) -> str:
    from numba import cuda

    function, copies = function_of(kernel), {}
    # Device functions ask for "the current device" while they are compiled; there is none.
    device = SimpleNamespace(compute_capability=compute_capability)
    with (
        mock.patch(PLACE["get_current_device"], return_value=device),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        text, _ = cuda.compile(
            _copied(function, copies, lineinfo),
            signature,
            device=False,
            abi="numba",
            cc=compute_capability,
            output="ptx",
            lineinfo=lineinfo,
        )
    target = re.search(r"\.target sm_(\d+)", text)[1]
    if target != "{}{}".format(*compute_capability):
        raise ValueError(
            f"compute_capability is {compute_capability}, which the compiler doesn't know; the "
            f"nearest is ({target[:-1]}, {target[-1]})"
        )
    return _with_pythons_names(text, [function, *(device.py_func for device in copies)])


def _copied(function: FunctionType, made: dict[object, object], lineinfo: bool) -> FunctionType:
    """A copy whose device functions are compiled with their line numbers too, and for the
    signatures they have. Numba compiles a device function as its own decorator says, keeps what it
    has compiled, and doesn't know the signatures that `jit` (jit.py) has kept from it.

    made      device function -> its copy, so far
    lineinfo  with line numbers; if not, as the decorators say
    """

    def copied(value: object) -> object:
        if isinstance(value, ModuleType) and value.__name__ == "simt.cuda":
            return sys.modules["numba.cuda"]  # Numba knows what its own threadIdx is
        options = getattr(value, "targetoptions", {})
        if not options.get("device"):
            return value
        if value not in made:
            made[value] = value  # for a function that calls itself
            inner = _copied(value.py_func, made, lineinfo)
            has_lines = lineinfo and inner.__name__ != "<lambda>"  # whose Numba can't find
            lines = {"lineinfo": True} if has_lines else {}
            made[value] = type(value)(inner, options | lines)
            for arguments, result in declared(value):
                made[value].compile_device(arguments, result)
            if declared(value):
                made[value].disable_compile()
        return made[value]

    names = {name: function.__globals__.get(name) for name in function.__code__.co_names}
    there = {**function.__globals__, **{n: copied(v) for n, v in names.items() if v is not None}}
    cells = tuple(CellType(copied(cell.cell_contents)) for cell in function.__closure__ or ())
    rest = function.__name__, function.__defaults__, cells
    new = FunctionType(function.__code__, there, *rest)
    new.__module__, new.__qualname__ = function.__module__, function.__qualname__
    return new


def _with_pythons_names(text: str, functions: Iterable[FunctionType]) -> str:
    """In .loc's files, Numba makes each name an absolute path, and LLVM writes what isn't ASCII as
    numbers. Here a name is again what Python gives the function, as in <ipython-input-1-...>."""
    for name in {function.__code__.co_filename for function in functions}:
        path = os.path.abspath(name).replace("\\", r"\\").encode()
        written = "".join(chr(byte) if 32 <= byte < 127 else f"\\{byte:03o}" for byte in path)
        text = text.replace(f'"{written}"', f'"{name}"')
    return text
