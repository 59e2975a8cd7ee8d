"""The page of the paged kernel, and what it must show: from the trace."""

import numpy as np

from pa_tutorial.kernels.cuda_backends import v1_vector_backend
from pa_tutorial.viz.kernel_runs import REFERENCE, Run, run_v1
from simt import Trace
from simt.trace import SPACES


def reference() -> Run:
    """The kernel at the sizes of vLLM's document, with its vector loads; thread block 0 traced."""
    return run_v1(REFERENCE, backend=v1_vector_backend)


def the_trace() -> Trace:
    return reference().trace


def physical(logical_block: int) -> int:
    return int(reference()["block_tables"][0, logical_block])


def stops(trace: Trace) -> list[int]:
    """The instructions at which a reader stops."""
    local = trace.records.space == SPACES.index("local")
    return np.unique(trace.records.instruction[~local]).tolist()
