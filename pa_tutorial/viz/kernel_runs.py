"""Runs of the paged kernel for pictures, with the parts of their traces per array."""

from dataclasses import dataclass, replace
from functools import cache
from math import prod

import numpy as np
import torch

from pa_tutorial.checks.problem import DecodeProblem
from pa_tutorial.kernels.cuda_backends import PagedBackend, v2_backend
from pa_tutorial.kernels.cuda_launch import PagedLaunch, PartitionedLaunch
from pa_tutorial.kernels.geometry import Geometry
from pa_tutorial.kernels.intermediates import MARKS, NAMES
from pa_tutorial.kernels.loads import LoadsOf, element_loads
from simt import Report, Snapshot, Trace

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
    """One launch of the kernel, with the trace of one thread block and snapshots of all."""

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

    def start_of_block(self, block: int) -> int:
        """The first element of a physical block and this KV head, in either cache."""
        return block * self["kv_block_stride"] + self.kv_head * self["kv_head_stride"]

    def __getitem__(self, name: str) -> object:
        """An argument of the kernel."""
        return self.prepared.arguments[name]

    def snapshot(self, where: str) -> Snapshot:
        """The snapshot of the traced thread block at a mark."""
        (snapshot,) = self.report.at(where, self.head)
        return snapshot


@cache
def run_v1(problem: DecodeProblem, head: int = 0, loads: LoadsOf = element_loads) -> Run:
    """Run paged_attention_v1 on a problem with all checks, tracing thread block (head, 0, 0)."""
    return watched(PagedBackend(loads).prepare(problem.paged("vllm")), head)


def watched(prepared: PagedLaunch, head: int = 0) -> Run:
    """Run a launch of the kernel or of a changed one, tracing thread block (head, 0, 0)."""
    names = (*NAMES, "red_smem", "q_vecs", "k_vecs", "qk")
    return Run(prepared, prepared.simulate(trace=(head, 0, 0), watch=MARKS, names=names))


@cache
def run_v2(problem: DecodeProblem, partition_size: int) -> tuple[PartitionedLaunch, Report]:
    """Run paged_attention_v2 up to its reduce kernel with all checks, and trace everything."""
    prepared = v2_backend.prepare(problem.paged("vllm"), partition_size=partition_size)
    return prepared, prepared.partitions.simulate(trace="all", watch=MARKS, names=NAMES)


def between(trace: Trace, after: str | None = None, before: str | None = None) -> Trace:
    """What the kernel itself does between two marks, without its device functions."""
    lines = {
        m: node.lineno for s in trace.sources for node, marks in s.marks.items() for m in marks
    }
    first, last = lines[after] if after else 0, lines[before] if before else np.inf
    there = [s.function == trace.kernel and first <= s.line < last for s in trace.sites]
    return replace(trace, records=trace.records[np.array(there)[trace.records.place]])


def of_function(trace: Trace, name: str) -> Trace:
    """What the lines of one function do, either the kernel or a device function."""
    there = [site.function == name for site in trace.sites]
    return replace(trace, records=trace.records[np.array(there)[trace.records.place]])


def part_of_array(
    trace: Trace, name: str, first_byte: int, shape: tuple[int, ...], item_bytes: int
) -> Trace:
    """The accesses to a part of a flat array, as if it were an array of this shape.

    first_byte  where the part begins, from the start of the array
    item_bytes  bytes per item, which is larger than the kernel's if the item is a vec

    An access to a piece of an item counts as an access to the item.
    """
    whole = trace.only(array=name)
    array, records = whole.the_array(), whole.records
    start, end = array.address + first_byte, array.address + first_byte + prod(shape) * item_bytes
    records = records[(records.address >= start) & (records.address < end)].copy()
    records.address -= (records.address - start) % item_bytes
    records.num_bytes = np.maximum(records.num_bytes, item_bytes)
    strides = tuple(prod(shape[axis + 1 :]) for axis in range(len(shape)))
    item = np.dtype(f"V{item_bytes}")
    part = replace(array, dtype=item, shape=shape, strides=strides, address=start)
    arrays = tuple(part if one is array else one for one in trace.arrays)
    return replace(whole, records=records, arrays=arrays)


def keys_of_block(run: Run, block: int) -> Trace:
    """The reads of K in one physical block, [HEAD_SIZE / X, BLOCK_SIZE, vecs]."""
    g, first = run.geometry, run.start_of_block(block) * run.geometry.ITEMSIZE
    shape = g.HEAD_SIZE // g.X, g.BLOCK_SIZE, g.X // g.VEC_SIZE
    return part_of_array(run.trace, "k_cache", first, shape, g.VEC_SIZE * g.ITEMSIZE)


def values_of_block(run: Run, block: int) -> Trace:
    """The reads of V in one physical block, [HEAD_SIZE, vecs of a row]."""
    g, first = run.geometry, run.start_of_block(block) * run.geometry.ITEMSIZE
    shape = g.HEAD_SIZE, g.NUM_V_VECS_PER_ROW
    return part_of_array(run.trace, "v_cache", first, shape, g.V_VEC_SIZE * g.ITEMSIZE)
