"""The ranks of a job: how a process joins the others, agrees with them, and leaves."""

import hashlib
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import NoReturn

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.elastic.multiprocessing.errors import ErrorHandler
from torch.distributed.rendezvous import rendezvous

from pa_tutorial.arguments import real_number, require
from pa_tutorial.tracebacks import ShortInNotebooks

LIMIT = 60.0  # the longest that a rank may keep the others waiting, in seconds
START = timedelta(minutes=5)  # by then all ranks must have started
GRACE = 2.0  # seconds that torchrun needs to notice a dead rank and end the others
NEVER = timedelta(days=7)


class Disagreement(ShortInNotebooks, RuntimeError):
    """The ranks were about to compute different things."""


@dataclass
class Group:
    """The ranks, seen from one of them.

    device   where this rank's tensors are
    patient  broadcasts from rank 0; it may wait as long as there are no requests
    witness  unused until a rank is lost, and then finds out which
    timeout  how long a collective may wait, and then the witness on rank 0; elsewhere, twice that
    doing    what this rank is doing now, for its final error message
    """

    rank: int
    num_ranks: int
    device: torch.device
    patient: dist.ProcessGroup
    witness: dist.ProcessGroup
    timeout: timedelta
    doing: str = "the start"

    def from_rank_0(self, message: object = None) -> object:
        """Rank 0's message, on every rank; the messages of other ranks are ignored."""
        box = [message]
        dist.broadcast_object_list(box, src=0, group=self.patient)
        return box[0]

    def agree(self, when: str, *facts: object) -> None:
        """Return if all ranks have the same facts. Only a hash of 8 bytes is sent.

        Otherwise raises Disagreement on every rank, naming the ranks that differ from rank 0.
        """
        mine = hash_of(*facts)
        everyone = [torch.empty_like(mine) for _ in range(self.num_ranks)]
        dist.all_gather(everyone, mine)
        if odd := [rank for rank, theirs in enumerate(everyone) if theirs != everyone[0]]:
            raise Disagreement(f"{when}: ranks {odd} differ from rank 0; nothing was computed")

    def fail(self, error: Exception) -> NoReturn:
        """End this process. torchrun, or Ranks, ends the others and reports the error."""
        try:
            if isinstance(error, dist.DistError) or "gloo/transport" in str(error):
                time.sleep(GRACE)
                self.name_those_that_hang()
            raise error
        except Exception as last_word:
            last_word.add_note(f"This is rank {self.rank}, in {self.doing}.")
            ErrorHandler().record_exception(last_word)  # where torchrun looks for errors
        sys.stdout.flush()
        os._exit(1)  # at once, because gloo's threads may crash when Python shuts down

    def name_those_that_hang(self) -> None:
        """Raise RuntimeError with the ranks that don't get here, if there are any.

        Only rank 0 learns which. The others see that it is gone, and let its word be the first.
        """
        try:
            dist.monitored_barrier(self.witness, self.timeout, wait_all_ranks=True)
        except RuntimeError:
            time.sleep(GRACE if self.rank > 0 else 0)
            raise


def hash_of(*facts: object) -> Tensor:
    """8 bytes that differ if a fact differs, including a tensor's type and shape.

    facts    tensors, and objects that `repr` describes completely
    returns  [1] int64
    """
    digest = hashlib.blake2b(digest_size=8)
    for fact in facts:
        if isinstance(fact, Tensor):
            digest.update(fact.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
            fact = fact.dtype, fact.shape
        digest.update(repr(fact).encode())
    return torch.frombuffer(bytearray(digest.digest()), dtype=torch.int64)


@contextmanager
def joined(limit: float = LIMIT) -> Iterator[Group]:
    """Join the job that torchrun (or Ranks) has started, as one of its ranks.

    limit  seconds after which a rank that keeps the others waiting is named: the others take half
           of them to notice, and half to find out which rank it is

    An exception inside, on any rank, ends the job.
    GPUs are used if there is one per rank of this machine, and communicate with nccl; CPUs use
    gloo.

    Raises ValueError if this process wasn't started as a rank, or if limit isn't a time.
    """
    require_limit(limit)
    store, rank, num_ranks = next(rendezvous("env://", timeout=START))
    store.set(f"here/{rank}", "")
    store.wait([f"here/{other}" for other in range(num_ranks)], START)
    stay_on_this_mac()
    device, timeout = device_of_this_rank(), timedelta(seconds=limit / 2)
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(backend, store=store, rank=rank, world_size=num_ranks, timeout=timeout)
    patient, witness = (dist.new_group(backend="gloo", timeout=t) for t in (NEVER, 2 * timeout))
    group = Group(rank, num_ranks, device, patient, witness, timeout)
    try:
        yield group
        dist.all_reduce(torch.zeros(1))  # no rank leaves before all have finished
    except Exception as error:
        group.fail(error)
    dist.destroy_process_group()


def require_limit(limit: float) -> None:
    """Raise TypeError or ValueError unless it is a time that a rank may keep the others waiting."""
    is_time = 0 < real_number("limit", limit) <= NEVER.total_seconds()
    require(is_time, "limit", limit, f"seconds, more than 0 and at most {NEVER.days} days")


def stay_on_this_mac() -> None:
    """Let gloo connect the ranks of one Mac directly: gloo looks up the Mac's name, which few
    networks know."""
    if sys.platform == "darwin" and os.environ["LOCAL_WORLD_SIZE"] == os.environ["WORLD_SIZE"]:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo0")


def device_of_this_rank() -> torch.device:
    """If this machine has one GPU per rank, this rank's GPU, which becomes the current one."""
    if torch.cuda.device_count() < int(os.environ["LOCAL_WORLD_SIZE"]):
        return torch.device("cpu")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    return device
