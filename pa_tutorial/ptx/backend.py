"""A backend whose kernels run as they were compiled: it takes the place of a stage in `check`."""

from dataclasses import dataclass

import torch
from torch import Tensor

from pa_tutorial.arguments import require
from pa_tutorial.attention.step import DecodeStep
from pa_tutorial.backends import Backend, Intermediates, Launch, backend_named
from pa_tutorial.kernels.cuda_launch import CudaLaunch, NaiveLaunch, PartitionedLaunch
from pa_tutorial.ptx.launching import PtxReport, run_ptx

CHECKS = ("memory", "init", "sync")  # thread blocks side by side; the simulator looks for races


@dataclass(frozen=True)
class Compiled:
    """One of our CUDA backends, or a reader's KernelFile, with its kernels compiled for a GPU.

    Its launches need CPU tensors. Ours show the scores and, before v2, the weights.
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
            reports.append(run_ptx(*args, **more, lineinfo=False, keeps_shared=True))

        if isinstance(self.launch, OURS):
            for part in parts_of(self.launch):
                threads, arguments = part.geometry.NUM_THREADS, part.arguments.values()
                own = {"shared_bytes": part.shared_bytes, "unwritten": part.unwritten}
                run_part(part.kernel, part.grid, threads, *arguments, **own)
        else:  # of a file, whose kernels are launched in brackets
            self.launch.run(launcher=run_part)
        self.reports = tuple(reports)
        return self.out

    def probe(self) -> Intermediates:
        """Run it; return `out` and, of our kernels, qk and (v1) logits, which stay in dynamic
        shared memory up to the barriers at which they are complete."""
        found = {"out": self.run()}
        if isinstance(self.launch, OURS):
            found |= scores_and_weights(self.reports[0], parts_of(self.launch)[0])
        return found


OURS = CudaLaunch | PartitionedLaunch
EMPTY = {"qk": float("-inf"), "logits": 0.0}


def scores_and_weights(report: PtxReport, part: CudaLaunch) -> Intermediates:
    """qk and, before v2, logits, of a kernel with the barriers of `part`."""
    barriers = barriers_of(part).items()
    return {name: by_token(report, barrier, part, EMPTY[name]) for name, barrier in barriers}


def barriers_of(part: CudaLaunch) -> dict[str, int]:
    """The numbers of the barriers at which dynamic shared memory holds all scores or weights.

    The barriers of the paged kernel, as of vLLM's: q is in shared memory; each warp's maximum is,
    and the scores; each warp's sum is; the weights are.
    """
    if isinstance(part, NaiveLaunch):
        return {"qk": 0}
    # In v2 the weights of each partition have a sum of their own.
    return {"qk": 1} if part.geometry.PARTITION_SIZE else {"qk": 1, "logits": 3}


def by_token(report: PtxReport, barrier: int, part: CudaLaunch, padding: float) -> Tensor:
    """What is there at a barrier, one number per token: [num_seqs, num_heads, longest]."""
    num_heads, num_seqs, num_partitions = report.machine.grid
    kept = torch.from_numpy(report.dynamic_shared(barrier))
    kept = kept.view(num_partitions, num_seqs, num_heads, -1)
    found = torch.full((num_seqs, num_heads, int(part.seq_lens.max())), padding)
    size = part.geometry.PARTITION_SIZE or found.shape[-1]
    for sequence, seq_len in enumerate(part.seq_lens.tolist()):
        for partition in range(-(-seq_len // size)):
            start = partition * size
            end = min(start + size, seq_len)
            found[sequence, :, start:end] = kept[partition, sequence, :, : end - start]
    return found


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
