"""What the tests let ranks do: the processes import these functions, so they stand in a module."""

import os
import pickle
import signal
import threading
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

from pa_tutorial.attention.online import Part
from pa_tutorial.checks import attempt
from pa_tutorial.distributed.context import (
    context_parallel_decode,
    deal_out,
    merge_over_ranks,
)
from pa_tutorial.distributed.group import Disagreement, Group
from pa_tutorial.distributed.wire import Collective, Wire


def context_parallel_stage(group: Group, blocks: list[list[int]]) -> Callable[..., Tensor]:
    """A function with the signature of a paged stage, computed by all ranks.

    blocks  receives, for each call, how many blocks this rank holds of each sequence
    """

    def decode(
        q: Tensor,
        k_cache: Tensor,
        v_cache: Tensor,
        block_tables: Tensor,
        seq_lens: Tensor,
        scale: float,
        alibi_slopes: Tensor | None = None,
    ) -> Tensor:
        whole = k_cache, v_cache, block_tables, seq_lens
        share = deal_out(*whole, group.rank, group.num_ranks)
        is_token = share.is_token(seq_lens).unflatten(1, (len(share.block_indices), -1))
        blocks.append(is_token.any(dim=-1).sum(dim=1).tolist())
        return context_parallel_decode(q, share, seq_lens, scale, alibi_slopes)

    return decode


def attempt_context_parallel(
    group: Group, stage: str
) -> tuple[dict[str, str], int, list[list[int]]]:
    """What is wrong in which case; the number of cases; the blocks of this rank in each case."""
    blocks: list[list[int]] = []
    result = attempt(stage, context_parallel_stage(group, blocks))
    return {c.name: c.diagnosis for c in result.cases if not c.passed}, result.total, blocks


def merge_given(group: Group, parts: list[tuple[Tensor, Tensor, Tensor]]) -> Tensor:
    """Each rank comes with its own part."""
    return merge_over_ranks(Part(*parts[group.rank]))


def decode_counted(group: Group, tensors: dict[str, Tensor], scale: float) -> list[Collective]:
    """The collectives of one context-parallel decode step."""
    whole = tensors["k_cache"], tensors["v_cache"], tensors["block_tables"], tensors["seq_lens"]
    share = deal_out(*whole, group.rank, group.num_ranks)
    with Wire() as wire:
        context_parallel_decode(tensors["q"], share, tensors["seq_lens"], scale)
    return wire.collectives


def agree_on(group: Group, facts: list[dict[str, object]]) -> str:
    """What the disagreement says if each rank has its own facts; "" if there is none."""
    try:
        group.agree("step 7", facts[group.rank])
    except Disagreement as error:
        return str(error)
    return ""


# What goes over the wire: each does one thing, and says what it must cost.


def counted(group: Group, name: str) -> tuple[list[Collective], list[Collective]]:
    """What Wire counts while a collective runs; what it must count, by the definition."""
    tensor = torch.arange(12, dtype=torch.float64)  # 96 bytes
    expected = COLLECTIVES[name][1]
    with Wire() as wire:
        COLLECTIVES[name][0](group, tensor)
    return wire.collectives, [Collective(*pair) for pair in expected]


def redistributed(group: Group, tensor: Tensor, before: object, after: object) -> None:
    """From one placement to another, by torch.distributed.tensor."""
    DTensor.from_local(tensor, group.mesh, [before]).redistribute(group.mesh, [after]).to_local()


def sent_and_received(group: Group, tensor: Tensor) -> None:
    if group.rank == 0:
        dist.send(tensor, 1)
    elif group.rank == 1:
        dist.recv(tensor, 0)


COLLECTIVES: dict[str, tuple[Callable, list[tuple[str, int]]]] = {
    "all_reduce": (lambda group, tensor: dist.all_reduce(tensor), [("all_reduce", 96)]),
    "all_gather": (
        lambda group, tensor: dist.all_gather(
            [torch.empty_like(tensor) for _ in range(group.num_ranks)], tensor
        ),
        [("all_gather", 96)],
    ),
    "all_gather_into_tensor": (
        lambda group, tensor: dist.all_gather_into_tensor(
            tensor.new_empty(group.num_ranks * 12), tensor
        ),
        [("all_gather", 96)],
    ),
    "broadcast": (lambda group, tensor: dist.broadcast(tensor, 0), [("broadcast", 96)]),
    "broadcast_object_list": (  # the size, then the object
        lambda group, tensor: dist.broadcast_object_list([None], 0),
        [("broadcast", 8), ("broadcast", len(pickle.dumps(None)))],
    ),
    "scatter": (
        lambda group, tensor: dist.scatter(
            tensor, [tensor] * group.num_ranks if group.rank == 0 else None
        ),
        [("scatter", 96)],
    ),
    "barrier": (lambda group, tensor: dist.barrier(), []),
    "two": (
        lambda group, tensor: (dist.all_reduce(tensor), dist.broadcast(tensor[:6], 0)),
        [("all_reduce", 96), ("broadcast", 48)],
    ),
    "dtensor_sum": (
        lambda group, tensor: redistributed(group, tensor, Partial(), Replicate()),
        [("all_reduce", 96)],
    ),
    "dtensor_whole": (
        lambda group, tensor: redistributed(group, tensor, Shard(0), Replicate()),
        [("all_gather", 96)],
    ),
    "nothing": (lambda group, tensor: tensor * 2, []),
}


def point_to_point(group: Group) -> list[Collective]:
    with Wire() as wire:
        sent_and_received(group, torch.zeros(12))
    return wire.collectives


def unknown_to_the_wire(group: Group) -> str:
    """What a collective that Wire does not know raises, before it has begun."""
    tensor = torch.zeros(2 * group.num_ranks)
    try:
        with Wire():
            dist.all_to_all_single(tensor, tensor.clone())
    except NotImplementedError as error:
        return str(error)
    return ""


# What goes wrong on a rank.


def rank_of(group: Group) -> int:
    return group.rank


def fail_on(group: Group, rank: int, message: str) -> None:
    """One rank fails; the others wait for it in a collective."""
    if group.rank == rank:
        raise ArithmeticError(message)
    dist.all_reduce(torch.zeros(1))


def die_on(group: Group, rank: int) -> None:
    if group.rank == rank:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.all_reduce(torch.zeros(1))


def stop_on(group: Group, rank: int) -> None:
    """The process stands still as a whole, but lives."""
    if group.rank == rank:
        os.kill(os.getpid(), signal.SIGSTOP)
    dist.all_reduce(torch.zeros(1))


def hang_on(group: Group, rank: int) -> None:
    if group.rank == rank:
        time.sleep(1000)
    dist.all_reduce(torch.zeros(1))


def sleep_on_all(group: Group, seconds: float) -> str:
    time.sleep(seconds)
    return "of the run that was interrupted"


def a_lock(group: Group) -> object:
    """Of a process: it cannot be sent."""
    return threading.Lock()


def write_to(group: Group, tensor: Tensor) -> Tensor:
    tensor += 1 + group.rank
    dist.barrier()
    return tensor


def end_soon(group: Group) -> None:
    """Die between two runs."""
    if group.rank == 1:
        threading.Timer(0.3, os._exit, (7,)).start()
