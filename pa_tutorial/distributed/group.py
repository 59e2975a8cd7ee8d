"""The ranks of a job: how one process joins the others, agrees with them, and leaves."""

import hashlib
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from math import inf
from typing import NoReturn

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.elastic.multiprocessing.errors import ErrorHandler
from torch.distributed.rendezvous import rendezvous

from pa_tutorial.arguments import require
from pa_tutorial.tracebacks import ShortInNotebooks

LIMIT = 60.0  # seconds for which a rank may keep the others waiting
START = timedelta(minutes=5)  # in which all ranks must have started
GRACE = 2.0  # seconds in which torchrun notices that a rank has died, and ends the others
NEVER = timedelta(days=7)


class Disagreement(ShortInNotebooks, RuntimeError):
    """The ranks were about to compute different things."""


@dataclass
class Group:
    """The ranks, seen from one of them.

    device   where this rank's tensors are
    patient  carries what rank 0 says; it may rest as long as there are no requests
    witness  carries nothing until a rank is lost, and then tells which
    timeout  how long a collective may wait, and then the witness on rank 0; elsewhere, twice that
    doing    what this rank does now, for its last word
    """

    rank: int
    num_ranks: int
    device: torch.device
    patient: dist.ProcessGroup
    witness: dist.ProcessGroup
    timeout: timedelta
    doing: str = "the start"

    def from_rank_0(self, message: object = None) -> object:
        """What rank 0 says, on every rank; the message of the others is not looked at."""
        box = [message]
        dist.broadcast_object_list(box, src=0, group=self.patient)
        return box[0]

    def agree(self, when: str, *facts: object) -> None:
        """Return if all ranks have the same facts. Only a hash of 8 bytes is sent.

        Raises Disagreement, on every rank, which names the ranks that differ from rank 0.
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
                # Raises, with the names of those that hang: they don't come here either.
                dist.monitored_barrier(self.witness, self.timeout, wait_all_ranks=True)
            raise error
        except Exception as last_word:
            last_word.add_note(f"This is rank {self.rank}, in {self.doing}.")
            ErrorHandler().record_exception(last_word)  # where torchrun looks for it
        sys.stdout.flush()
        os._exit(1)  # at once: gloo's threads do not always survive Python's own end


def hash_of(*facts: object) -> Tensor:
    """8 bytes that differ if a fact differs; a tensor's type and shape belong to it.

    facts    tensors, and what says all about itself by `repr`
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
    """Inside, this process is a rank of the job that torchrun (or Ranks) has started.

    limit  seconds after which a rank that keeps the others waiting is named: half of them for the
           others to notice, half to find out which rank it is

    Whatever raises inside, on any rank, ends the job.
    GPUs are used if there is one for each rank of this machine, and talk by nccl; CPUs by gloo.

    Raises ValueError if this process was not started as a rank, or limit is no time.
    """
    require(0 < limit < inf, "limit", limit, "seconds, more than 0")
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
        dist.all_reduce(torch.zeros(1))  # a rank that leaves has seen that all others have finished
    except Exception as error:
        group.fail(error)
    dist.destroy_process_group()


def stay_on_this_mac() -> None:
    """Let gloo connect ranks of one Mac directly: few networks know the name of a Mac, and gloo
    looks for it."""
    if sys.platform == "darwin" and os.environ["LOCAL_WORLD_SIZE"] == os.environ["WORLD_SIZE"]:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo0")


def device_of_this_rank() -> torch.device:
    """A GPU, from now on the current one, if this machine has one for each of its ranks."""
    if torch.cuda.device_count() < int(os.environ["LOCAL_WORLD_SIZE"]):
        return torch.device("cpu")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    return device
