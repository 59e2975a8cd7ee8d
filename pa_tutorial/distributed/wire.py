"""What goes over the network: every collective of a piece of code, counted."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

NAMESPACES = ("c10d", "_c10d_functional")
# What torch calls them, in the plain form and in that of torch.distributed.tensor.
NAMES = {
    "allreduce_": "all_reduce",
    "all_reduce": "all_reduce",
    "allgather_": "all_gather",
    "_allgather_base_": "all_gather",
    "all_gather_into_tensor": "all_gather",
    "broadcast_": "broadcast",
    "broadcast": "broadcast",
    "scatter_": "scatter",
}


@dataclass(frozen=True)
class Collective:
    """One of them, seen from one rank.

    num_bytes  what this rank puts in; for a broadcast, what it gets
    """

    name: str
    num_bytes: int


class Wire(TorchDispatchMode):
    """Counts the collectives that this rank takes part in.

        with Wire() as wire:
            context_parallel_decode(…)
        wire.collectives

    Every operation of torch passes through Python while it counts: not for timings.
    """

    def __init__(self) -> None:
        super().__init__()
        self.collectives: list[Collective] = []

    @property
    def num_bytes(self) -> int:
        return sum(collective.num_bytes for collective in self.collectives)

    def counts(self) -> dict[str, int]:
        """How many of each."""
        return dict(Counter(collective.name for collective in self.collectives))

    def __torch_dispatch__(
        self,
        function: Callable,
        types: tuple[type, ...],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # it comes again, as what DTensor makes of it
        if function.namespace in NAMESPACES and function._opname in NAMES:
            self.collectives.append(
                Collective(NAMES[function._opname], _num_bytes(function._opname, args))
            )
        return function(*args, **(kwargs or {}))


def _num_bytes(name: str, args: tuple[Any, ...]) -> int:
    """Of the tensors that are put in; a gathering has them behind those that come out."""
    given = args[1] if name in ("allgather_", "_allgather_base_") else args[0]
    tensors = [leaf for leaf in tree_leaves(given) if isinstance(leaf, Tensor)]
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
