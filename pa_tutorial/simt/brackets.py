"""simulate makes kernel[grid, block](…), Numba's way to write a launch, run in the simulator."""

import inspect
from collections.abc import Callable

from pa_tutorial.private_names import CUDADispatcher, normalize_kernel_dimensions
from pa_tutorial.simt.simulate import launch

OPTIONS = frozenset(inspect.getfullargspec(launch).kwonlyargs) - {"shared_bytes"}


class simulate:
    """From now on, kernel[grid, block, stream, shared_bytes](…) runs here, with all checks.

        simulate()
        double_each[4, 32](out, a)
        print(double_each.report)

        with simulate(trace=0):  # other options, until the end of the block
            double_each[4, 32](out, a)

    Without the call to simulate, the same lines run on a GPU. `kernel.report` is the report of the
    kernel's last launch. A stream is ignored: one launch ends before the next one begins.

    options  those of `launch`, except shared_bytes, which is in the brackets

    Raises TypeError for an option that `launch` doesn't have. A launch raises what `launch` raises,
    and Numba's own errors for brackets that Numba doesn't accept.
    """

    def __init__(self, **options: object) -> None:
        unknown = sorted(options.keys() - OPTIONS)
        if unknown:
            raise TypeError(
                f"simulate has no option {unknown[0]!r}; it has {', '.join(sorted(OPTIONS))}"
            )
        self.options, self.before = options, CUDADispatcher.configure
        CUDADispatcher.configure = configure_with(options)

    def __repr__(self) -> str:
        words = ", ".join(f"{name}={value!r}" for name, value in self.options.items())
        return f"kernel[grid, block](…) runs in the simulator{words and ', with '}{words}"

    def __enter__(self) -> None:
        pass

    def __exit__(self, *error: object) -> None:
        CUDADispatcher.configure = self.before


def configure_with(options: dict[str, object]) -> Callable:
    """A method for Numba's kernels that replaces the one that prepares a launch on a GPU."""

    def configure(
        kernel: CUDADispatcher, griddim: object, blockdim: object, stream: object = 0,
        sharedmem: int = 0,
    ) -> Callable[..., None]:  # fmt: skip
        grid, block = normalize_kernel_dimensions(griddim, blockdim)

        def launched(*args: object) -> None:
            kernel.report = None
            kernel.report = launch(kernel, grid, block, *args, shared_bytes=sharedmem, **options)

        return launched

    return configure
