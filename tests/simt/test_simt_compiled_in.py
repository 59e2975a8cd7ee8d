"""What Numba compiles into a kernel is frozen: a GPU wouldn't see a later change, so it's refused.

A device array is compiled in as an address, and a host array as a copy."""

import linecache
from hashlib import sha256

import numpy as np
import pytest

from simt import SimtError, Unsupported, cuda

ATTRIBUTES = "from types import SimpleNamespace\nconfig = SimpleNamespace(N=4, M=1)"
COLOURS = "from enum import IntEnum\nclass Colour(IntEnum):\n    RED = 4"
NEXT = "@cuda.jit(device=True)\ndef next(x):\n    return x + 1"
NEXT_BUT_ONE = f"{NEXT}\n@cuda.jit(device=True)\ndef next_but_one(x):\n    return next(next(x))"
PLUS_N = "N = 1\n@cuda.jit(device=True)\ndef plus_n(x):\n    return x + N"
STEP = "@cuda.jit(device=True)\ndef stepped(x, step=1):\n    return x + step"
ARRAYS = "W = (np.arange(3), np.arange(5))"
TYPED = '@cuda.jit("float64(float64)", device=True)\ndef typed(x):\n    return x + 0.1'

# a cell, an expression of a kernel, another cell, what a launch says after it, and the value that
# a new kernel has; None: a device function that uses it has to be defined anew, too
CHANGES = {
    "a number": ("N = 4", "N", "N = 9", "N is 9, and was 4 when", 9),
    "its type": ("N = 4", "7 / N", "N = 4.5", "N is 4.5, and was 4 when", 7 / 4.5),
    "a NumPy scalar": ("N = np.int32(4)", "N", "N = np.int32(9)", "was np.int32(4)", 9),
    "a tuple": ("N = (4, 5)", "N[1]", "N = (4, 6)", "N is (4, 6), and was (4, 5)", 6),
    "a member": (ATTRIBUTES, "config.N", "config.N = 9", "config.N is 9, and was 4", 9),
    "an enumeration": (COLOURS, "Colour.RED", COLOURS.replace("4", "9"), "Colour.RED is 9", 9),
    "a type": ("T = np.float32", "T(0.1)", "T = float64", "T is float64, and was float32", 0.1),
    "a device function": (NEXT, "next(1)", NEXT.replace("+ 1", "+ 8"), "next has changed", 9),
    "a default": (STEP, "stepped(1)", STEP.replace("=1", "=8"), "stepped has changed", 9),
    "a signature": (TYPED, "typed(0.1)", TYPED.replace("64", "32"), "typed has", np.float32(0.2)),
    "an array in a tuple": (ARRAYS, "W[1][3]", f"{ARRAYS}\nW[1][3] = 9", "W has changed", 9),
    "a number in a function": (PLUS_N, "plus_n(1)", "N = 8", "Define plus_n and the kernel", None),
    "a function in a function": (
        *(NEXT_BUT_ONE, "next_but_one(1)", NEXT.replace("+ 1", "+ 4")),
        *("Define next_but_one and the kernel", None),
    ),
}
LAUNCHED = "kernel was first launched with arguments of these types"
DECORATED = "kernel was decorated with its signature"
MOMENTS = {LAUNCHED: "@cuda.jit", DECORATED: '@cuda.jit("void(float64[:])")'}
at_each_moment = pytest.mark.parametrize("moment", MOMENTS)


class Notebook(dict):
    """The names of a notebook, whose cells are run with `run`."""

    def __init__(self) -> None:
        self.run("import numpy as np\nfrom numba import float64\nfrom simt import cuda")

    def run(self, text: str) -> None:
        """Jupyter's file of a cell has a name that depends on the text."""
        file = f"<cell {sha256(text.encode()).hexdigest()}>"
        linecache.cache[file] = len(text), None, text.splitlines(keepends=True), file
        exec(compile(text, file, "exec"), self)

    def define_kernel(self, expression: str, decorator: str = "@cuda.jit") -> None:
        self.run(f"{decorator}\ndef kernel(out):\n    out[0] = {expression}")

    def launched(self) -> float:
        out = np.zeros(1)
        self["kernel"][1, 1](out)
        return out[0]


def compiled(cell: str, expression: str, moment: str) -> Notebook:
    """A notebook with a kernel that Numba would have compiled, at this moment."""
    notebook = Notebook()
    notebook.run(cell)
    notebook.define_kernel(expression, MOMENTS[moment])
    if moment == LAUNCHED:
        notebook.launched()
    return notebook


@at_each_moment
@pytest.mark.parametrize("name", CHANGES)
def test_a_change_of_what_is_compiled_in_is_refused(name: str, moment: str) -> None:
    cell, expression, changed, words, new = CHANGES[name]
    notebook = compiled(cell, expression, moment)
    notebook.run(changed)
    with pytest.raises(Unsupported) as caught:
        notebook.launched()
    assert words in str(caught.value)
    assert moment in str(caught.value)
    notebook.run(f"# the old cell again, with a comment that moves its lines\n{cell}")
    assert notebook.launched() == compiled(cell, expression, moment).launched()
    notebook.run(changed)
    notebook.define_kernel(expression)
    if new is not None:
        assert notebook.launched() == new
        return
    with pytest.raises(Unsupported, match="was first called, by kernel"):
        notebook.launched()


def test_a_device_function_with_a_signature_is_frozen_when_it_is_decorated() -> None:
    notebook = Notebook()
    notebook.run(PLUS_N.replace("device", '"int64(int64)", device'))
    notebook.run("N = 8")
    notebook.define_kernel("plus_n(1)")
    with pytest.raises(Unsupported, match="N is 8, and was 1 when plus_n was decorated"):
        notebook.launched()


def test_a_variable_of_the_enclosing_function_is_frozen() -> None:
    n = 4

    @cuda.jit
    def kernel(out):
        out[0] = n

    kernel[1, 1](np.zeros(1))
    n = 9
    with pytest.raises(Unsupported, match="n is 9, and was 4 when kernel was first launched"):
        kernel[1, 1](np.zeros(1))


def test_what_compiles_to_the_same_and_what_the_kernel_does_not_use_may_change() -> None:
    notebook = compiled(ATTRIBUTES, "config.N", DECORATED)
    notebook.run("config.M = 9\nM = 9\nconfig.N = np.int64(4)")
    assert notebook.launched() == 4


def test_another_kernel_of_the_same_function_is_compiled_anew() -> None:
    notebook = Notebook()
    notebook.run("def function(out):\n    out[0] = N")
    for number in (444, 999):
        notebook.run(f"N = {number}\nkernel = cuda.jit(function)")
        assert notebook.launched() == number


# Global arrays --------------------------------------------------------------------------------


WEIGHT = "W = np.arange(3)\n@cuda.jit(device=True)\ndef weight(i):\n    return W[i]"


@at_each_moment
@pytest.mark.parametrize("changed", ["W[1] = 9", "W = np.array([3, 9, 9])"])
def test_a_host_array_keeps_what_it_held(moment: str, changed: str) -> None:
    notebook = compiled(WEIGHT, "weight(1) + W[1]", moment)
    notebook.run(changed)
    assert notebook.launched() == 2
    notebook.define_kernel("W[1]")
    assert notebook.launched() == 9
    notebook.define_kernel("weight(1)")  # a function with an older copy
    with pytest.raises(Unsupported, match="W has changed since weight was first called"):
        notebook.launched()


ON_DEVICE = "D = cuda.to_device(np.arange(4.0))"


def test_a_kernel_and_its_functions_store_into_a_global_device_array() -> None:
    notebook = Notebook()
    notebook.run(f"{ON_DEVICE}\n@cuda.jit(device=True)\ndef put(a, i):\n    a[i] = D[i + 1] = 9")
    notebook.run("@cuda.jit\ndef kernel():\n    put(D, 1)")
    notebook["kernel"][1, 1]()
    assert notebook["D"].copy_to_host().tolist() == [0, 9, 9, 3]
    notebook.run("@cuda.jit\ndef kernel():\n    cuda.atomic.add(D, cuda.blockIdx.x, 1)")
    notebook["kernel"][4, 1]()
    assert notebook["D"].copy_to_host().tolist() == [1, 10, 10, 4]


@at_each_moment
def test_a_global_device_array_may_change_but_not_be_another(moment: str) -> None:
    notebook = compiled(ON_DEVICE, "D[1]", moment)
    notebook.run("D[1] = 9")
    assert notebook.launched() == 9
    notebook.run(ON_DEVICE)
    with pytest.raises(Unsupported, match=f"D has changed since {moment}"):
        notebook.launched()


def test_a_global_device_array_and_an_argument_may_share_memory() -> None:
    notebook = Notebook()
    notebook.run(ON_DEVICE)
    notebook.run("@cuda.jit\ndef kernel(out):\n    i = cuda.grid(1)\n    out[i] = D[(i + 1) % 4]")
    with pytest.raises(SimtError, match=r"race: .* writes out\[.\], which .* read \(D\["):
        notebook["kernel"][1, 4](notebook["D"])


def test_a_global_host_array_is_not_stored_into() -> None:
    notebook = Notebook()
    notebook.run("W = np.arange(3)\n@cuda.jit\ndef kernel(out):\n    W[0] = 1")
    with pytest.raises(Unsupported, match="W is read-only"):
        notebook.launched()
