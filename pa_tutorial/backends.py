"""The backends: ways to compute one decode step over a paged cache, behind one interface.

    backend = backend_named("cuda_v1")
    launch = backend.prepare(step)     # everything is checked and allocated
    launch.run()                       # as often as you like; it returns launch.out

A stage of the ladder that reads blocks holds a backend; so does the engine.
"""

from importlib import import_module
from typing import Protocol, runtime_checkable

from torch import Tensor

from pa_tutorial.attention.step import DecodeStep

Intermediates = dict[str, Tensor]


class Launch(Protocol):
    """One decode step, ready to run.

    out  [num_seqs, num_heads, head_size], in the dtype of q; every run writes it anew
    """

    @property
    def out(self) -> Tensor: ...

    def run(self) -> Tensor:
        """Compute the step and return `out`. On a GPU it doesn't wait for the result."""

    def probe(self) -> Intermediates:
        """Compute the step; return `out` and what was computed on the way, as far as this backend
        shows it: qk, qk_max, exp_sum, logits, accs (shapes: kernels/intermediates.py).

        Raises ValueError where the kernel runs on a GPU: there it can't be watched.
        """


@runtime_checkable
class Backend(Protocol):
    """A way to compute a decode step.

    layout      of the cache that it reads: "vllm" or "plain"
    reusable    a launch stays right when q, lengths, block tables and cache are changed in place,
                as long as no length exceeds what its block table has room for
    """

    layout: str
    reusable: bool

    def prepare(self, step: DecodeStep, **sizes: int | None) -> Launch:
        """Check what only this backend asks for, and allocate the outputs, all NaN.

        sizes  partition_size and the like: each backend's own, with defaults

        Raises TypeError or ValueError, naming the argument, for what the backend can't take;
        ImportError where it can't run.
        """

    def why_absent(self) -> str | None:
        """Why it can't run on this machine; None if it can."""


# Where each backend is: looking at this table loads none of them.
BACKENDS = {
    "paged_gather": "attention.paged:gather_backend",
    "paged_online": "attention.paged:online_backend",
    "cuda_naive": "kernels.cuda_backends:naive_backend",
    "cuda_v1": "kernels.cuda_backends:v1_backend",
    "cuda_v1_vector": "kernels.cuda_backends:v1_vector_backend",
    "cuda_v2": "kernels.cuda_backends:v2_backend",
    "cpu": "kernels.cpu_backend:cpu_backend",
    "triton": "kernels.triton_backend:triton_backend",
}


def backend_named(name: str) -> Backend:
    """The backend of that name; ValueError lists the names there are."""
    if name not in BACKENDS:
        raise ValueError(f"backend is {name!r}; it must be one of {', '.join(BACKENDS)}")
    module, _, attribute = BACKENDS[name].partition(":")
    return getattr(import_module(f"pa_tutorial.{module}"), attribute)
