"""A backend whose kernels run as they were compiled: it takes the place of a stage in `check`."""

from dataclasses import dataclass

from torch import Tensor

from pa_tutorial.arguments import require
from pa_tutorial.attention.step import DecodeStep
from pa_tutorial.backends import Backend, Intermediates, Launch, backend_named
from pa_tutorial.kernels.cuda_launch import CudaLaunch, PartitionedLaunch
from pa_tutorial.ptx.launching import PtxReport, run_ptx

CHECKS = ("memory", "init", "sync")  # thread blocks side by side; the simulator looks for races


@dataclass(frozen=True)
class Compiled:
    """One of our CUDA backends, or a reader's KernelFile, with its kernels compiled for a GPU.

    Its launches need CPU tensors, and show no intermediates.
    """

    backend: Backend
    compute_capability: tuple[int, int] = (8, 0)
    reusable = False

    @property
    def layout(self) -> str:
        return self.backend.layout

    def why_absent(self) -> str | None:
        return self.backend.why_absent()

    def prepare(self, step: DecodeStep, **sizes: int | None) -> "CompiledLaunch":
        require(not step.q.is_cuda, "step.q.device", step.q.device, "on the CPU")
        return CompiledLaunch(self.backend.prepare(step, **sizes), self.compute_capability)


@dataclass
class CompiledLaunch:
    """A decode step whose kernels are compiled and interpreted.

    reports  of the last run, one per kernel
    """

    launch: Launch
    compute_capability: tuple[int, int]
    reports: tuple[PtxReport, ...] = ()

    @property
    def out(self) -> Tensor:
        return self.launch.out

    def run(self) -> Tensor:
        reports: list[PtxReport] = []

        def run_part(*args: object, **more: object) -> None:
            more |= {"checks": CHECKS, "compute_capability": self.compute_capability}
            reports.append(run_ptx(*args, **more, lineinfo=False))

        if isinstance(self.launch, CudaLaunch | PartitionedLaunch):
            for part in parts_of(self.launch):
                threads, arguments = part.geometry.NUM_THREADS, part.arguments.values()
                own = {"shared_bytes": part.shared_bytes, "unwritten": part.unwritten}
                run_part(part.kernel, part.grid, threads, *arguments, **own)
        else:  # of a file, whose kernels are launched in brackets
            self.launch.run(launcher=run_part)
        self.reports = tuple(reports)
        return self.out

    def probe(self) -> Intermediates:
        return {"out": self.run()}


def parts_of(launch: CudaLaunch | PartitionedLaunch) -> tuple[CudaLaunch, ...]:
    """Its kernels, in the order in which they run."""
    if isinstance(launch, PartitionedLaunch):
        return launch.partitions, launch.reduce
    return (launch,)


def compiled_stage(
    name: str, backend: Backend | None, compute_capability: tuple[int, int]
) -> Compiled:
    """The backend of a stage, or one in its place, for `check`.

    Raises ValueError for a stage that isn't written in CUDA, TypeError for what isn't a backend.
    """
    allowed = "None for this stage: only those that begin with cuda_ are compiled for a GPU"
    require(name.startswith("cuda_"), "compiled", compute_capability, allowed)
    backend = backend or backend_named(name)
    if not isinstance(backend, Backend):
        raise TypeError(f"function is {backend!r}; with compiled it must be a backend")
    return Compiled(backend, compute_capability)
