"""Count what is sent over the network: every collective of a piece of code."""

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor
from torch.distributed.tensor import DTensor

from pa_tutorial.private_names import TorchDispatchMode, tree_leaves

# torch's names for them: of the plain form, then of the form in torch.distributed.tensor.
NAMES = {"allreduce_": "all_reduce", "allgather_": "all_gather", "broadcast_": "broadcast"}
NAMES |= {"all_reduce": "all_reduce", "all_gather_into_tensor": "all_gather"}
CARRY_NOTHING = ("barrier", "wait_tensor", "_wrap_tensor_autograd")


class Collective(NamedTuple):
    """One collective, seen from one rank.

    num_bytes  what this rank sends; for a broadcast, what it receives
    """

    name: str
    num_bytes: int


class Wire(TorchDispatchMode):
    """Counts the collectives that this rank takes part in.

        with Wire() as wire:
            merge_over_ranks(part)
        wire.collectives

    A barrier carries nothing and isn't counted. Don't use it for timings: while it counts, every
    operation of torch goes through Python.

    Raises NotImplementedError for an unknown collective, which it couldn't count.
    """

    def __init__(self) -> None:
        super().__init__()
        self.collectives: list[Collective] = []

    def __torch_dispatch__(
        self, function: Callable, types: tuple, args: tuple = (), kwargs: dict | None = None
    ) -> object:
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # DTensor calls again with plain tensors
        name = function.overloadpacket.__name__
        if "c10d" in function.namespace and name not in CARRY_NOTHING:
            if name not in NAMES:
                raise NotImplementedError(f"Wire does not know how to count {function}")
            sent = args[1] if name == "allgather_" else args[0]  # results come first
            tensors = [leaf for leaf in tree_leaves(sent) if isinstance(leaf, Tensor)]
            num_bytes = sum(tensor.nbytes for tensor in tensors)
            self.collectives.append(Collective(NAMES[name], num_bytes))
        return function(*args, **(kwargs or {}))
