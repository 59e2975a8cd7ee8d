"""A kernel with all that it needs to run: on the GPU for CUDA tensors, else in the simulator."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from types import CellType, FunctionType

import torch
from torch import Tensor

from pa_tutorial.kernels.geometry import Geometry
from pa_tutorial.kernels.gpu_launch import OnGpu
from pa_tutorial.simt import Report, launch

SIMULATED = (
    "The tensors are on the CPU: the kernel runs in the simulator. (With CUDA tensors it runs on "
    "the GPU. This is said once.)"
)


@dataclass(frozen=True)
class Launch:
    """A kernel with all that it needs to run.

    kernel        a @cuda.jit kernel, made for this geometry
    grid          thread blocks along x, y, z: (num_heads, num_seqs, max_num_partitions)
    shared_bytes  dynamic shared memory of one thread block; the static comes on top
    arguments     of the kernel, by name
    order         their names, in the order of the kernel's signature
    out           what the kernel writes in the end: an output, NaN before the run
    unwritten     the arguments that hold nothing before the run
    """

    kernel: Callable
    geometry: Geometry
    grid: tuple[int, int, int]
    shared_bytes: int
    arguments: dict[str, object]
    order: tuple[str, ...]
    out: Tensor
    unwritten: tuple[str, ...] = ("out",)

    @property
    def kernel_arguments(self) -> tuple[object, ...]:
        """What the kernel is called with."""
        return tuple(self.arguments[name] for name in self.order)

    def simulate(self, **options: object) -> Report:
        """Run it without a GPU; `out` is written. The options are those of simt.launch."""
        return launch(
            self.kernel,
            self.grid,
            self.geometry.NUM_THREADS,
            *self.kernel_arguments,
            shared_bytes=self.shared_bytes,
            unwritten=self.unwritten,
            **options,
        )

    @cached_property
    def on_gpu(self) -> OnGpu:
        """The launch on a GPU; its arguments are wrapped when it is first asked for."""
        size = self.grid, self.geometry.NUM_THREADS
        shared_bytes = self.shared_bytes, self.geometry.static_shared_bytes
        return OnGpu(self.kernel, size, shared_bytes, self.kernel_arguments)

    def run(self) -> Tensor:
        """Run it where its tensors are, and return `out`.

        On a GPU it is put on torch's current stream, and nobody waits for it.
        """
        if self.out.is_cuda:
            self.on_gpu()
        else:
            say_simulated()
            self.simulate()
        return self.out


@dataclass(frozen=True)
class Partitioned:
    """v2: two launches, one after the other.

    partitions  the paged kernel
    reduce      the reduce kernel, which joins what the first has left:
    tmp_out     [num_seqs, num_heads, max_num_partitions, head_size]  an output a partition
    exp_sums    [num_seqs, num_heads, max_num_partitions]  each below its partition's maximum
    max_logits  the same: the largest score of each partition
    out         [num_seqs, num_heads, head_size]  one output of them all
    """

    partitions: Launch
    reduce: Launch
    tmp_out = property(lambda self: self.partitions.out)
    exp_sums = property(lambda self: self.of_partitions("exp_sums"))
    max_logits = property(lambda self: self.of_partitions("max_logits"))
    out = property(lambda self: self.reduce.out)

    def of_partitions(self, name: str) -> Tensor:
        """One number for each partition, from the array of this name."""
        return self.partitions.arguments[name].view(self.tmp_out.shape[:3])

    def simulate(self, **options: object) -> tuple[Report, Report]:
        """Run both without a GPU. The options are those of simt.launch, the same for both."""
        return self.partitions.simulate(**options), self.reduce.simulate(**options)

    def run(self) -> Tensor:
        """Run both where their tensors are, and return `out`."""
        self.partitions.run()
        return self.reduce.run()


def with_names(kernel: Callable, **values: object) -> FunctionType:
    """The plain function of a kernel, with other values for names that it takes from around it.

    Raises ValueError for a name that it does not use.
    """
    function = kernel.py_func
    code, cells = function.__code__, function.__closure__ or ()
    unknown = set(values) - {*code.co_names, *code.co_freevars}
    if unknown:
        raise ValueError(f"values: {code.co_name} does not use {', '.join(sorted(unknown))}")
    around = {n: cell.cell_contents for n, cell in zip(code.co_freevars, cells, strict=True)}
    closure = tuple(CellType(values.get(name, value)) for name, value in around.items())
    return FunctionType(code, function.__globals__ | values, code.co_name, None, closure)


_said = False


def say_simulated() -> None:
    """That there is no GPU in this: once in a process."""
    global _said
    if not _said:
        print(SIMULATED)
        _said = True


def as_stored(tensor: Tensor) -> Tensor:
    """The tensor with its elements as a kernel keeps them: bfloat16 as uint16, the same memory."""
    return tensor.view(torch.uint16) if tensor.dtype == torch.bfloat16 else tensor


def flat(tensor: Tensor) -> Tensor:
    """Its memory as a kernel keeps it, from the first element to the last, gaps included, as one
    dimension."""
    stored = as_stored(tensor)
    last = sum((n - 1) * stride for n, stride in zip(stored.shape, stored.stride(), strict=True))
    return stored.as_strided((last + 1,), (1,))
