"""Private names of other libraries: all that we use, and what breaks when one goes.

Private is what begins with an underscore, and what no documentation names. A name is imported from
here without its underscore; only that imports its library:

    from pa_tutorial.private_names import tree_leaves

What is replaced for a while is named by its place. Attributes of objects that a library gives us
stand here too, though they are used where they are.

    mock.patch(PLACE["get_current_device"], return_value=device)
"""

from pkgutil import resolve_name

# What breaks -> the names without which it does.
NEEDED = {
    "attention.work and distributed.wire cannot count bytes": (
        "torch.utils._python_dispatch.TorchDispatchMode",
        "torch.utils._pytree.tree_leaves",
    ),
    "each rank of distributed.ranks imports torch's compiler for itself, for seconds": (
        "torch._dynamo",
    ),
    "distributed.ranks cannot run functions of a notebook's cells": ("numba.cloudpickle",),
    "`pytest -m gpu` cannot keep a stream of a GPU busy": ("torch.cuda._sleep",),
    "simt.signatures cannot have a kernel with a signature where there is no GPU": (
        "numba.core.sigutils.is_signature",
        "numba.core.sigutils.normalize_signature",
        "numba.cuda.target.CUDATypingContext",
    ),
    "simt.brackets cannot take launches written as Numba writes them": (
        "numba.cuda.dispatcher.CUDADispatcher",
        "numba.cuda.dispatcher.CUDADispatcher.configure",
        "numba.cuda.errors.normalize_kernel_dimensions",
    ),
    "simt.numba_ptx and kernels.compiler_report cannot compile for a GPU that is not there": (
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
    "kernels.cpu cannot deal out its loops": ("numba.core.cpu.ParallelOptions",),
    "kernels.triton_compiled cannot compile for a GPU that is not there": (
        "triton.runtime.driver.DriverConfig.active",
    ),
    "kernels.triton_interpreter cannot run Triton's kernels on CPU tensors": (
        "triton.runtime.interpreter.InterpretedFunction",
        "triton.runtime.interpreter._patch_lang",
    ),
    "kernels.triton_interpreter cannot check addresses": (
        "triton.runtime.interpreter.interpreter_builder",
        "triton.runtime.interpreter.InterpreterBuilder",
        "triton.runtime.interpreter.InterpreterBuilder.create_masked_load",
        "triton.runtime.interpreter.InterpreterBuilder.create_masked_store",
    ),
    "kernels.triton_interpreter computes with the bits of bfloat16, not the values": (
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
    """Look a name up. Raises ImportError that says what breaks if its library has it no longer."""
    if name not in PLACE:
        raise AttributeError(f"private_names has no {name}; it has {', '.join(PLACE)}")
    place = PLACE[name]
    try:
        return resolve_name(place)
    except AttributeError:
        raise ImportError(f"{place} is gone: {BREAKS[place]}") from None
