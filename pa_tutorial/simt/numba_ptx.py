"""What Numba's compiler says about a kernel, without a GPU.

The simulator understands a little more Python than Numba does, so a kernel is never just
simulated; it is compiled as well.
"""

import warnings
from collections.abc import Callable
from types import SimpleNamespace
from unittest import mock

from pa_tutorial.private_names import PLACE
from pa_tutorial.simt.kernel_arguments import arrays_of, function_of, named
from pa_tutorial.simt.signatures import types_of


def ptx(kernel: Callable, *args: object, compute_capability: tuple[int, int] = (9, 0)) -> str:
    """The PTX (NVIDIA's assembly language) that Numba generates for these arguments.

    kernel              a @cuda.jit kernel, or its plain function
    args                as for `launch`; only their types matter, or its signature's
    compute_capability  the GPU to compile for, (8, 0) or (9, 0) for example
    returns             PTX as text

    Raises numba's TypingError and related errors where Numba rejects the kernel; TypeError for
    arguments that no launch accepts; ImportError where the compiler isn't installed (numba-cuda
    has no wheels for macOS).
    """
    from numba import cuda

    function = function_of(kernel)
    by_name = named(function, args)
    signature = types_of(function, (by_name | arrays_of(by_name)).values())
    # Device functions ask for "the current device" while they are compiled; there is none.
    device = SimpleNamespace(compute_capability=compute_capability)
    with (
        mock.patch(PLACE["get_current_device"], return_value=device),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        text, _ = cuda.compile(
            function, signature, device=False, abi="numba", cc=compute_capability, output="ptx"
        )
    return text
