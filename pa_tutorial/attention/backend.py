"""What a backend is: a way to compute one decode step over a paged cache.

    launch = backend.prepare(step)     # checks and allocates everything
    launch.run()                       # as often as you like; it returns launch.out

A stage of the ladder that reads blocks holds a backend; so does the engine.
"""

from typing import Protocol, runtime_checkable

from torch import Tensor

from pa_tutorial.attention.step import DecodeStep

Intermediates = dict[str, Tensor]


class Launch(Protocol):
    """One decode step, ready to run.

    out  [num_seqs, num_heads, head_size], in the dtype of q; every run writes it anew. A kernel has
         no backward pass: its `out` has no graph, even if an input requires_grad
    """

    @property
    def out(self) -> Tensor: ...

    def run(self) -> Tensor:
        """Compute the step and return `out`. On a GPU it doesn't wait for the result."""

    def probe(self) -> Intermediates:
        """Compute the step; return `out` and what was computed on the way, as far as this backend
        shows it: qk, qk_max, exp_sum, logits, accs (shapes: kernels/intermediates.py).

        Raises ValueError if the kernel runs on a GPU, where it can't be watched.
        """


@runtime_checkable
class Backend(Protocol):
    """A way to compute a decode step.

    layout      of the cache that it reads: "vllm" or "plain"
    reusable    a launch remains valid when q, lengths, block tables and cache change in place, as
                long as every sequence fits into its block table
    """

    layout: str
    reusable: bool

    def prepare(self, step: DecodeStep, **sizes: int | None) -> Launch:
        """Check what only this backend requires, and allocate the outputs, all NaN.

        sizes  partition_size and the like; each backend has different ones, with defaults

        Raises TypeError or ValueError, naming the argument, for what the backend can't take;
        ImportError where it can't run.
        """

    def why_absent(self) -> str | None:
        """Why it can't run on this machine; None if it can."""
