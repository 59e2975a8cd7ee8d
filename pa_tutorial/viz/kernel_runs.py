"""Runs of the paged kernel for pictures, with the parts of their traces.

A reader's functions go in by the backend: run_v1(problem, backend=v1_backend.with_functions(...))
"""

from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import torch

from pa_tutorial.checks.problem import DecodeProblem
from pa_tutorial.kernels.cuda_backends import (
    CudaBackend,
    PagedBackend,
    PartitionedBackend,
    v1_backend,
    v2_backend,
)
from pa_tutorial.kernels.cuda_launch import PagedLaunch, PartitionedLaunch
from pa_tutorial.kernels.geometry import Geometry
from pa_tutorial.kernels.intermediates import MARKS, NAMES
from simt import Report, Snapshot, Trace
from simt.trace import NO_TURN

# The sizes in vLLM's documentation and in most models of its time: float16, heads of 128.
REFERENCE = DecodeProblem(
    "reference",
    "the sizes of vLLM's document",
    "",
    seq_lens=(170,),
    num_heads=2,
    num_kv_heads=1,
    head_size=128,
    dtype=torch.float16,
)


@dataclass(frozen=True)
class Run:
    """One launch of the kernel, with the trace of one thread block and snapshots of all.

    backend  of which the kernel is
    """

    backend: CudaBackend
    prepared: PagedLaunch
    report: Report

    @property
    def geometry(self) -> Geometry:
        return self.prepared.geometry

    @property
    def trace(self) -> Trace:
        return self.report.trace

    @property
    def head(self) -> int:
        """The head of the traced thread block."""
        return int(self.trace.records.block[0])

    @property
    def kv_head(self) -> int:
        return self.head // self.geometry.NUM_QUERIES_PER_KV

    def __getitem__(self, name: str) -> object:
        """An argument of the kernel."""
        return self.prepared.arguments[name]

    def snapshot(self, where: str) -> Snapshot:
        """The snapshot of the traced thread block at a mark."""
        (snapshot,) = self.report.at(where, self.head)
        return snapshot


@cache
def run_v1(problem: DecodeProblem, head: int = 0, backend: PagedBackend = v1_backend) -> Run:
    """Run v1 on a problem with all checks, tracing thread block (head, 0, 0)."""
    return watched(backend, backend.prepare(problem.paged("vllm")), head)


def watched(backend: CudaBackend, prepared: PagedLaunch, head: int = 0) -> Run:
    """Run a launch of the paged kernel, tracing thread block (head, 0, 0)."""
    report = prepared.simulate(trace=(head, 0, 0), watch=MARKS, names=NAMES)
    return Run(backend, prepared, report)


@cache
def run_v2(
    problem: DecodeProblem, partition_size: int, backend: PartitionedBackend = v2_backend
) -> tuple[PartitionedLaunch, Report]:
    """Run v2 up to its reduce kernel with all checks, and trace everything."""
    prepared = backend.prepare(problem.paged("vllm"), partition_size=partition_size)
    return prepared, prepared.partitions.simulate(trace="all", watch=MARKS, names=NAMES)


def between(trace: Trace, after: str | None = None, before: str | None = None) -> Trace:
    """What happens between two marks of the kernel, in the functions that it calls there, too."""
    lines = {
        m: node.lineno for s in trace.sources for node, marks in s.marks.items() for m in marks
    }
    first, last = lines[after] if after else 0, lines[before] if before else np.inf
    # The place in the kernel: of the call that led to a function, or of the access itself.
    calls = [next((place for place, turn in way if turn == NO_TURN), -1) for way in trace.ways]
    called = np.array(calls)[trace.records.way]
    place = np.where(called >= 0, called, trace.records.place)
    line = np.array([site.line for site in trace.sites])[place]
    return replace(trace, records=trace.records[(first <= line) & (line < last)])


def of_function(trace: Trace, name: str) -> Trace:
    """What a device function does, with the functions that it calls."""
    own = np.array([site.function == name for site in trace.sites])
    inside = np.array([any(own[place] for place, _ in way) for way in trace.ways], bool)
    there = own[trace.records.place] | inside[trace.records.way]
    return replace(trace, records=trace.records[there])


def places(trace: Trace) -> tuple[np.ndarray, ...]:
    """The index of the element at which each access begins, axis by axis; the trace must be of one
    array."""
    return trace.the_array().indices(trace.records.address)


def of_block(run: Run, cache: str, block: int) -> Trace:
    """The reads of one physical block in "k_cache" or "v_cache"."""
    reads = run.trace.only(array=cache)
    return replace(reads, records=reads.records[places(reads)[0] == block])


def softmax_lines(scores: Snapshot, weights: Snapshot, num_tokens: int) -> dict[str, np.ndarray]:
    """One number per token: its score, the exp of that, and its weight.

    scores, weights  snapshots at SCORES_DONE and WEIGHTS_DONE
    """
    qk, weight = (np.ma.filled(at["logits"], np.nan)[:num_tokens] for at in (scores, weights))
    return {"qk": qk, "exp(qk - qk_max)": np.exp(qk - scores["qk_max"][0]), "weight": weight}
