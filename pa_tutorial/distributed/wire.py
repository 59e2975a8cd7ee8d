"""What goes over the network: every collective of a piece of code, counted."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.distributed.tensor import DTensor

from pa_tutorial.private_names import TorchDispatchMode, tree_leaves

NAMESPACES = ("c10d", "_c10d_functional")
# What torch calls them, in the plain form and in that of torch.distributed.tensor -> our name, and
# which argument holds the tensors that are counted. A gathering has its results in front of them.
KINDS = {
    "allreduce_": ("all_reduce", 0),
    "all_reduce": ("all_reduce", 0),
    "allgather_": ("all_gather", 1),
    "_allgather_base_": ("all_gather", 1),
    "all_gather_into_tensor": ("all_gather", 0),
    "broadcast_": ("broadcast", 0),
    "broadcast": ("broadcast", 0),
    "scatter_": ("scatter", 0),
    "send": ("send", 0),
    "recv_": ("receive", 0),
}
CARRY_NOTHING = ("barrier", "monitored_barrier_", "wait_tensor", "_wrap_tensor_autograd")


@dataclass(frozen=True)
class Collective:
    """One of them, seen from one rank.

    num_bytes  what this rank puts in; for a broadcast, a scatter or a receive, what it gets
    """

    name: str
    num_bytes: int


class Wire(TorchDispatchMode):
    """Counts the collectives that this rank takes part in.

        with Wire() as wire:
            context_parallel_decode(…)
        wire.collectives

    A barrier carries nothing and is not counted. Every operation of torch passes through Python
    while it counts: not for timings.

    Raises NotImplementedError for a collective that is not known here: it would not be counted.
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
        name = function.overloadpacket.__name__
        if function.namespace in NAMESPACES and name not in CARRY_NOTHING:
            if name not in KINDS:
                raise NotImplementedError(f"Wire does not know how to count {function}")
            kind, position = KINDS[name]
            self.collectives.append(Collective(kind, _num_bytes(args[position])))
        return function(*args, **(kwargs or {}))


def _num_bytes(tree: Any) -> int:
    """Of a tensor, or of those in a list."""
    tensors = [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
