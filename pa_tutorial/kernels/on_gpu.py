"""Launches on a GPU: CUDA tensors go to a Numba kernel without copies, on torch's stream."""

import warnings
from collections.abc import Callable

import torch
from torch import Tensor

from pa_tutorial.arguments import require

DEFAULT_SHARED = 48 * 1024  # bytes of shared memory that a launch may use without asking


class OnGpu:
    """One launch of a kernel on a GPU. Call it to enqueue the launch on torch's current stream.

    The arguments, CUDA tensors and numbers, are wrapped for Numba once, here; a call only
    launches. It doesn't wait for the GPU and copies nothing. So it can be captured in a CUDA graph,
    but only after one ordinary call, because the first call compiles the kernel.

    size          thread blocks along x, y, z; threads per thread block
    shared_bytes  dynamic and static shared memory per thread block
    """

    def __init__(
        self, kernel: Callable, size: tuple, shared_bytes: tuple[int, int], arguments: tuple
    ) -> None:
        self.kernel, self.size, self.shared_bytes = kernel, size, shared_bytes[0]
        self.arguments = tuple(wrapped(argument) for argument in arguments)
        self.configured: dict[int, Callable] = {}  # handle of a stream -> the launch on it
        if sum(shared_bytes) > DEFAULT_SHARED:
            allow_shared(kernel, self.arguments, self.shared_bytes)

    def __call__(self) -> None:
        stream = torch.cuda.current_stream().cuda_stream
        if stream not in self.configured:
            from numba import cuda

            size = *self.size, cuda.external_stream(stream) if stream else 0, self.shared_bytes
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # Numba warns of a small grid, as of a small batch
                self.configured[stream] = self.kernel[size]
        self.configured[stream](*self.arguments)


def wrapped(argument: object) -> object:
    """A tensor as Numba takes it, over the same memory; anything else unchanged.

    Raises ValueError unless a tensor is on the GPU that a launch would run on.
    """
    if not isinstance(argument, Tensor):
        return argument
    from numba import cuda

    if argument.is_cuda:
        current, index = torch.cuda.current_device(), argument.device.index
        allowed = f"cuda:{current}, the current device; see torch.cuda.device"
        require(index == current, "device", argument.device, allowed)
    return cuda.as_cuda_array(argument.detach(), sync=False)


_marked: dict[object, int] = {}  # handle of a kernel -> dynamic shared memory that it may use


def allow_shared(kernel: Callable, arguments: tuple[object, ...], num_bytes: int) -> None:
    """Allow a kernel more than 48 KiB of shared memory; without this, the launch fails.

    vLLM calls cudaFuncSetAttribute. Numba has no function for it, so we call the driver.
    """
    from cuda.bindings.driver import CUfunction_attribute

    from pa_tutorial.private_names import driver

    signature = tuple(kernel.typeof_pyval(argument) for argument in arguments)
    function = kernel.compile(signature).library.get_cufunc()
    attribute = CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    # The limit belongs to the kernel, not to the launch, and another launch may need more.
    _marked[function.handle] = max(num_bytes, _marked.get(function.handle, 0))
    most = _marked[function.handle]
    driver.cuKernelSetAttribute(attribute, most, function.handle, function.device.id)


def max_shared_bytes() -> int:
    """The most shared memory, static and dynamic together, for a thread block on this GPU."""
    from numba import cuda

    return cuda.get_current_device().MAX_SHARED_MEMORY_PER_BLOCK_OPTIN
