"""What goes over the network: every collective of a piece of code, counted."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor
from torch.distributed.tensor import DTensor

from pa_tutorial.private_names import TorchDispatchMode, tree_leaves

# What torch calls them, in the plain form and in that of torch.distributed.tensor -> our name, and
# which argument holds the tensors that are counted. A gathering has its results in front of them.
KINDS = {
    "allreduce_": ("all_reduce", 0),
    "all_reduce": ("all_reduce", 0),
    "allgather_": ("all_gather", 1),
    "all_gather_into_tensor": ("all_gather", 0),
    "broadcast_": ("broadcast", 0),
}
CARRY_NOTHING = ("barrier", "wait_tensor", "_wrap_tensor_autograd")


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
            merge_over_ranks(part)
        wire.collectives

    A barrier carries nothing and is not counted. Every operation of torch passes through Python
    while it counts: not for timings.

    Raises NotImplementedError for a collective that is not known here: it would not be counted.
    """

    def __init__(self) -> None:
        super().__init__()
        self.collectives: list[Collective] = []

    def __torch_dispatch__(
        self, function: Callable, types: tuple, args: tuple = (), kwargs: dict | None = None
    ) -> object:
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # it comes again, as what DTensor makes of it
        name = function.overloadpacket.__name__
        if "c10d" in function.namespace and name not in CARRY_NOTHING:
            if name not in KINDS:
                raise NotImplementedError(f"Wire does not know how to count {function}")
            kind, position = KINDS[name]
            tensors = [leaf for leaf in tree_leaves(args[position]) if isinstance(leaf, Tensor)]
            self.collectives.append(Collective(kind, sum(tensor.nbytes for tensor in tensors)))
        return function(*args, **(kwargs or {}))
