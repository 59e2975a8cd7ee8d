"""The ranks of a job: how one process joins the others, agrees with them, and leaves."""

import hashlib
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from math import inf
from typing import NoReturn

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.rendezvous import rendezvous

from pa_tutorial.arguments import require

LIMIT = 60.0  # seconds for which a rank may keep the others waiting
START = timedelta(minutes=5)  # in which all ranks must have started
GRACE = 2.0  # seconds in which torchrun, or Ranks, names one that has died
NEVER = timedelta(days=7)


class Disagreement(RuntimeError):
    """The ranks were about to compute different things."""


@dataclass
class Group:
    """The ranks, seen from one of them.

    device   where this rank's tensors are
    store    of the job: names and values that all ranks can read
    control  carries what the CPUs tell each other; always gloo
    patient  the same, but waits as long as it takes: rank 0 may rest when there are no requests
    limit    seconds for which a rank may keep the others waiting
    say      says the last word
    doing    what this rank does now, for the last word
    """

    rank: int
    num_ranks: int
    device: torch.device
    store: dist.Store
    control: dist.ProcessGroup
    patient: dist.ProcessGroup
    limit: float
    say: Callable[[str], None]
    doing: str = "the start"

    def from_rank_0(self, message: object = None) -> object:
        """What rank 0 says, on every rank; the message of the others is not looked at."""
        box = [message]
        dist.broadcast_object_list(box, src=0, group=self.patient)
        return box[0]

    def agree(self, when: str, facts: Mapping[str, object]) -> None:
        """Return if all ranks have the same facts.

        Each fact becomes a hash of 8 bytes, and only these are sent.
        Raises Disagreement, on every rank, which names the ranks that differ from rank 0.
        """
        mine = torch.tensor([hash_of(fact) for fact in facts.values()])
        everyone = [torch.empty_like(mine) for _ in range(self.num_ranks)]
        dist.all_gather(everyone, mine, group=self.control)
        faults = []
        for rank, theirs in enumerate(everyone):
            same = zip(facts, (theirs == everyone[0]).tolist(), strict=True)
            if different := [name for name, is_same in same if not is_same]:
                faults.append(f"rank {rank} has other {' and '.join(different)} than rank 0")
        if faults:
            raise Disagreement(f"{when}: {'; '.join(faults)}; nothing was computed")

    def fail(self, error: Exception) -> NoReturn:
        """Say why the job ends, and end this process; who started the ranks ends the others."""
        self.end(self._last_word(error))

    def end(self, last_word: str) -> NoReturn:
        self.say(last_word)
        sys.stdout.flush()
        os._exit(1)  # at once: gloo's threads do not always survive Python's own end

    def _last_word(self, error: Exception) -> str:
        if isinstance(error, Disagreement):
            return str(error)
        if isinstance(error, dist.DistError) or "gloo/transport" in str(error):
            return f"{self._missing() or 'another rank'} did not come to {self.doing}"
        return f"rank {self.rank} failed in {self.doing}: {type(error).__name__}: {error}"

    def _missing(self) -> str:
        """Who has not noticed, within the limit, that one of us is lost.

        The ranks do not notice at once: of two that have not, one may still wait for the other.
        """
        self.store.set(f"waits/{self.rank}", "")
        time.sleep(GRACE)
        deadline = time.monotonic() + self.limit
        while True:
            missing = [r for r in range(self.num_ranks) if not self.store.check([f"waits/{r}"])]
            if len(missing) < 2 or time.monotonic() > deadline:
                return " and ".join(f"rank {rank}" for rank in missing)
            time.sleep(0.1)


def hash_of(fact: object) -> int:
    """8 bytes that differ if the fact differs; a tensor's type and shape belong to it.

    fact  a tensor, or something whose `repr` says all about it
    """
    digest = hashlib.blake2b(digest_size=8)
    if isinstance(fact, Tensor):
        digest.update(f"{fact.dtype} {list(fact.shape)} ".encode())
        numbers = fact.detach().cpu().flatten().contiguous()
        digest.update(numbers.view(torch.uint8).numpy().tobytes())
    else:
        digest.update(repr(fact).encode())
    return int.from_bytes(digest.digest(), "little", signed=True)


@contextmanager
def joined(limit: float = LIMIT, say: Callable[[str], None] | None = None) -> Iterator[Group]:
    """Inside, this process is a rank of the job that torchrun (or Ranks) has started.

    limit  seconds for which one rank may keep the others waiting in a collective
    say    says the last word; standard error, if it is None

    Whatever raises inside, on any rank, ends the job.
    GPUs are used if there is one for each rank of this machine: nccl then, else gloo.

    Raises ValueError if this process was not started as a rank, or limit is no time.
    """
    require(0 < limit < inf, "limit", limit, "seconds, more than 0")
    store, rank, num_ranks = next(rendezvous("env://", timeout=START))
    store.set(f"here/{rank}", "")
    store.wait([f"here/{other}" for other in range(num_ranks)], START)
    stay_on_this_mac()
    device, timeout = device_of_this_rank(), timedelta(seconds=limit)
    on_gpus = device.type == "cuda"
    backend = "nccl" if on_gpus else "gloo"
    dist.init_process_group(backend, store=store, rank=rank, world_size=num_ranks, timeout=timeout)
    control = dist.new_group(backend="gloo", timeout=timeout) if on_gpus else dist.group.WORLD
    patient = dist.new_group(backend="gloo", timeout=NEVER)
    say = say or partial(print, f"[rank {rank}] the job ends:", file=sys.stderr, flush=True)
    group = Group(rank, num_ranks, device, store, control, patient, limit, say)
    try:
        yield group
        dist.barrier(group=control)
    except Exception as error:
        group.fail(error)
    # torch's threads end with the last reference to its group: not as late as at the end of the
    # process, when they could no more.
    group = control = patient = None
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
