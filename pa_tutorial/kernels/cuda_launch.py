"""A kernel with everything it needs: it runs on the GPU for CUDA tensors, else in the simulator."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import ModuleType

import torch
from torch import Tensor

from pa_tutorial.arguments import require, require_tensor
from pa_tutorial.kernels.geometry import Geometry
from pa_tutorial.kernels.intermediates import (
    MARKS,
    NAMES,
    REDUCED,
    REDUCED_NAMES,
    SCORES_DONE,
    intermediates,
    intermediates_of_naive,
    intermediates_of_v2,
)
from pa_tutorial.kernels.on_gpu import OnGpu
from pa_tutorial.paging.quantization import FLOAT8
from simt import Report, Trace, launch
from simt.snapshots import END

SIMULATED = (
    "The tensors are on the CPU: the kernel runs in the simulator. (With CUDA tensors it runs on "
    "the GPU. This message appears once.)"
)


@dataclass(frozen=True)
class CudaLaunch:
    """A CUDA kernel with everything it needs to run.

    namespace     the kernel's file, made for this geometry (template.py)
    kernel        a @cuda.jit kernel of it
    grid          thread blocks along x, y, z: (num_heads, num_seqs, max_num_partitions)
    shared_bytes  dynamic shared memory per thread block, in addition to the static
    arguments     of the kernel, by name, in the order of its signature
    out           the kernel's output, NaN before the run
    unwritten     the arguments that hold nothing before the run
    """

    namespace: ModuleType
    kernel: Callable
    geometry: Geometry
    grid: tuple[int, int, int]
    shared_bytes: int
    arguments: dict[str, object]
    out: Tensor
    unwritten: tuple[str, ...] = ("out",)

    @property
    def seq_lens(self) -> Tensor:
        return self.arguments["seq_lens"]

    def simulate(self, **options: object) -> Report:
        """Run it without a GPU; this writes `out`. The options are as for simt.launch."""
        return launch(
            self.kernel,
            self.grid,
            self.geometry.NUM_THREADS,
            *self.arguments.values(),
            shared_bytes=self.shared_bytes,
            unwritten=self.unwritten,
            **options,
        )

    @cached_property
    def on_gpu(self) -> OnGpu:
        """The launch on a GPU; its arguments are wrapped at the first use."""
        size = self.grid, self.geometry.NUM_THREADS
        shared_bytes = self.shared_bytes, self.geometry.static_shared_bytes
        return OnGpu(self.kernel, size, shared_bytes, tuple(self.arguments.values()))

    def run(self) -> Tensor:
        """Run it where its tensors are, and return `out`.

        On a GPU this enqueues it on torch's current stream and returns at once.
        """
        if self.out.is_cuda:
            self.on_gpu()
        else:
            say_simulated()
            self.simulate()
        return self.out

    def traced(self, block: tuple[int, int, int] = (0, 0, 0), **options: object) -> Trace:
        """What a thread block does, in the simulator."""
        return self.simulate(trace=[block], **options).trace

    def watched(
        self, where: Sequence[str] | str, names: Sequence[str], **options: object
    ) -> Report:
        """Run it in the simulator, with snapshots of these variables at these marks.

        Raises ValueError for tensors on a GPU.
        """
        allowed = "on the CPU: a kernel can only be watched in the simulator"
        require(not self.out.is_cuda, "q.device", self.out.device, allowed)
        return self.simulate(watch=where, names=names, **options)


class NaiveLaunch(CudaLaunch):
    """A launch of naive_kernel."""

    def probe(self, **options: object) -> dict[str, Tensor]:
        """Run it in the simulator; return `out`, qk and, where the kernel has variables of these
        names, qk_max and exp_sum."""
        report = self.watched((SCORES_DONE, END), (), **options)
        return intermediates_of_naive(report, self.seq_lens) | {"out": self.out}


class PagedLaunch(CudaLaunch):
    """A launch of the paged kernel: v1, or the first half of v2."""

    def probe(self, **options: object) -> dict[str, Tensor]:
        """Run it in the simulator; return `out` and the intermediates of v1."""
        report = self.watched(MARKS, NAMES, **options)
        return intermediates(report, self.geometry, self.seq_lens) | {"out": self.out}


@dataclass(frozen=True)
class PartitionedLaunch:
    """v2: two launches, one after the other.

    partitions  the paged kernel
    reduce      the reduce kernel, which merges what the first one wrote:
    tmp_out     [num_seqs, num_heads, max_num_partitions, head_size]  an output per partition
    exp_sums    [num_seqs, num_heads, max_num_partitions]  relative to the partition's maximum
    max_logits  same shape: the largest score of each partition
    out         [num_seqs, num_heads, head_size]  the merged output
    """

    partitions: PagedLaunch
    reduce: CudaLaunch
    tmp_out = property(lambda self: self.partitions.out)
    exp_sums = property(lambda self: self.partitions.arguments["exp_sums"])
    max_logits = property(lambda self: self.partitions.arguments["max_logits"])
    out = property(lambda self: self.reduce.out)

    def simulate(self, **options: object) -> tuple[Report, Report]:
        """Run both without a GPU. The options are as for simt.launch, and the same for both."""
        return self.partitions.simulate(**options), self.reduce.simulate(**options)

    def run(self) -> Tensor:
        """Run both where their tensors are, and return `out`."""
        self.partitions.run()
        return self.reduce.run()

    def probe(self, **options: object) -> dict[str, Tensor]:
        """Run both in the simulator; return `out` and the intermediates of the whole sequence."""
        report = self.partitions.watched(MARKS, NAMES, **options)
        reduced = self.reduce.watched(REDUCED, REDUCED_NAMES, **options)
        inputs = self.partitions.geometry, self.partitions.seq_lens
        found = intermediates_of_v2(report, reduced, *inputs, self.max_logits, self.exp_sums)
        return found | {"out": self.out}


_said = False


def say_simulated() -> None:
    """Say once per process that no GPU is used."""
    global _said
    if not _said:
        print(SIMULATED)
        _said = True


def as_stored(tensor: Tensor) -> Tensor:
    """The tensor as a kernel stores its elements: bfloat16 viewed as uint16, float8 as uint8, the
    same memory."""
    require_tensor("tensor", tensor)
    if tensor.dtype in FLOAT8:
        return tensor.view(torch.uint8)
    return tensor.view(torch.uint16) if tensor.dtype == torch.bfloat16 else tensor
