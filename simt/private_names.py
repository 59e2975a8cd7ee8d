"""Private names of Numba and IPython: all that we use, and what breaks if one disappears.

A name is private if it begins with an underscore or isn't documented. Import it from here without
its underscore. A name that we replace for a while is given by its place:

    mock.patch(PLACE["get_current_device"], return_value=device)
"""

from pkgutil import resolve_name

# What breaks -> the names that it needs.
NEEDED = {
    "signatures cannot have a kernel with a signature where there is no GPU": (
        "numba.core.sigutils.is_signature",
        "numba.core.sigutils.normalize_signature",
        "numba.cuda.target.CUDATypingContext",
    ),
    "signatures cannot tell the signatures of what Numba has compiled for a GPU": (
        "numba.cuda.dispatcher.CUDADispatcher._can_compile",
    ),
    "simulate cannot take launches written as Numba writes them": (
        "numba.cuda.dispatcher.CUDADispatcher",
        "numba.cuda.dispatcher.CUDADispatcher.configure",
        "numba.cuda.dispatcher.CUDADispatcher.forall",
        "numba.cuda.errors.normalize_kernel_dimensions",
    ),
    "ufuncs cannot run @vectorize and @guvectorize for CUDA": (
        "numba.cuda.vectorizers.CUDAVectorize",
        "numba.cuda.vectorizers.CUDAUFuncDispatcher",
        "numba.cuda.vectorizers.CUDAUFuncMechanism",
        "numba.cuda.vectorizers.CUDAGUFuncVectorize",
        "numba.cuda.vectorizers.CUDAGeneralizedUFunc",
        "numba.cuda.vectorizers._CUDAGUFuncCallSteps",
        "numba.cuda.deviceufunc.GUFuncEngine",
    ),
    "host cannot replace device_memset": ("numba.cuda.cudadrv.driver.device_memset",),
    "notebooks cannot show the error of a cell without IPython's frames": (
        "IPython.core.interactiveshell.InteractiveShell._showtraceback",
    ),
    "compile_ptx cannot compile for a GPU that is not there": (
        "numba.cuda.dispatcher.get_current_device",
    ),
}
BREAKS = {place: what for what, places in NEEDED.items() for place in places}
PLACE = {place.rpartition(".")[2].removeprefix("_"): place for place in BREAKS}


def __getattr__(name: str) -> object:
    """Look a name up. If its library no longer has it, the ImportError says what breaks."""
    if name not in PLACE:
        raise AttributeError(f"private_names has no {name}; it has {', '.join(PLACE)}")
    place = PLACE[name]
    try:
        return resolve_name(place)
    except AttributeError:
        raise ImportError(f"{place} is gone: {BREAKS[place]}") from None
