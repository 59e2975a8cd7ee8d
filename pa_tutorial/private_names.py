"""Private names of other libraries: all that we use, and what breaks if one disappears.

A name is private if it begins with an underscore or isn't documented. Import it from here without
its underscore; only that imports its library:

    from pa_tutorial.private_names import tree_leaves

A name that we replace for a while is given by its place. Attributes of objects that a library
returns are listed here too, though they are used elsewhere.

    mock.patch(PLACE["get_current_device"], return_value=device)
"""

from pkgutil import resolve_name

# What breaks -> the names that it needs.
NEEDED = {
    "attention.work and distributed.wire cannot count bytes": (
        "torch.utils._python_dispatch.TorchDispatchMode",
        "torch.utils._pytree.tree_leaves",
    ),
    "each rank of distributed.ranks spends seconds importing torch's compiler": ("torch._dynamo",),
    "distributed.ranks cannot run functions of a notebook's cells": ("numba.cloudpickle",),
    "`pytest -m gpu` cannot keep a stream of a GPU busy": ("torch.cuda._sleep",),
    "kernels.compiled cannot compile for a GPU that is not there": (
        "numba.cuda.dispatcher.get_current_device",
    ),
    "kernels.on_gpu cannot launch with more than 48 KiB of shared memory": (
        "cuda.bindings.driver.cuKernelSetAttribute",
        "numba.cuda.cudadrv.driver.driver",
        "numba.cuda.cudadrv.driver.CudaPythonFunction.device",
        "numba.cuda.cudadrv.driver.CudaPythonFunction.handle",
        "numba.cuda.codegen.CUDACodeLibrary.get_cufunc",
        "numba.cuda.dispatcher.CUDADispatcher.compile",
        "numba.cuda.dispatcher.CUDADispatcher.typeof_pyval",
        "numba.cuda.dispatcher._Kernel.library",
    ),
    "bench.vllm_peer cannot use vLLM's kernel for AMX": ("torch.cpu._init_amx",),
    "kernels.cpu.kernel cannot parallelise its loops": ("numba.core.cpu.ParallelOptions",),
    "kernels.triton.compiled cannot compile for a GPU that is not there": (
        "triton.runtime.driver.DriverConfig.active",
    ),
    "kernels.triton.interpreter cannot run Triton's kernels on CPU tensors": (
        "triton.runtime.interpreter.InterpretedFunction",
        "triton.runtime.interpreter._patch_lang",
    ),
    "kernels.triton.interpreter cannot check addresses": (
        "triton.runtime.interpreter.interpreter_builder",
        "triton.runtime.interpreter.InterpreterBuilder",
        "triton.runtime.interpreter.InterpreterBuilder.create_masked_load",
        "triton.runtime.interpreter.InterpreterBuilder.create_masked_store",
    ),
    "kernels.triton.interpreter computes with the bits of bfloat16, not the values": (
        "triton.runtime.interpreter.InterpreterBuilder.cast_impl",
        "triton.runtime.interpreter.InterpreterBuilder.create_dot",
        "triton.runtime.interpreter.InterpreterBuilder.create_fp_to_fp",
        "triton.runtime.interpreter.ReduceScanOpInterface.check_tensor",
        "triton.runtime.interpreter.TensorHandle",
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
