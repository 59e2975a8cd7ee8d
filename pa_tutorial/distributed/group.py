"""The ranks of a job: how one process joins the others, agrees with them, and leaves."""

import hashlib
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from math import inf
from typing import NoReturn

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.rendezvous import rendezvous

from pa_tutorial.arguments import require

LIMIT = 60.0  # seconds for which a rank may keep the others waiting
START = 300.0  # seconds in which all ranks must have started
GRACE = 2.0  # seconds between the first and the last rank that finds one lost
NEVER = timedelta(days=7)
VERDICT = "verdict"


class Disagreement(RuntimeError):
    """The ranks were about to compute different things."""


def say_and_exit(rank: int, verdict: str) -> NoReturn:
    """End this process, whatever its other threads are doing."""
    print(f"[rank {rank}] the job ends: {verdict}", file=sys.stderr, flush=True)
    end_process(1)


def end_process(code: int) -> NoReturn:
    """At once: gloo's threads do not always survive Python's own end."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


@dataclass
class Group:
    """The ranks, seen from one of them.

    device   where this rank's tensors are
    store    of the job: names and values that all ranks can read
    control  carries what the CPUs tell each other; always gloo
    patient  the same, but waits as long as it takes: rank 0 may rest when there are no requests
    mesh     the ranks as torch.distributed.tensor wants them: one row
    end      what is done at the end, with the rank and the verdict; it may not return
    doing    what this rank does now, for the last word
    """

    rank: int
    num_ranks: int
    device: torch.device
    store: dist.Store
    control: dist.ProcessGroup
    patient: dist.ProcessGroup
    mesh: DeviceMesh
    end: Callable[[int, str], None] = say_and_exit
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
        faults = [
            f"rank {rank} has other {' and '.join(different)} than rank 0"
            for rank, theirs in enumerate(everyone)
            if (different := _different(facts, theirs != everyone[0]))
        ]
        if faults:
            raise Disagreement(f"{when}: {'; '.join(faults)}; nothing was computed")

    def fail(self, error: Exception) -> None:
        """End the job because of an error in this rank; does not return."""
        self.end(self.rank, self._verdict(error))

    def _verdict(self, error: Exception) -> str:
        """Why the job ends: what the first rank that failed has said, for all ranks."""
        if isinstance(error, Disagreement):
            verdict = str(error)
        elif is_lost_contact(error):
            self.store.set(f"waits/{self.rank}", self.doing)
            time.sleep(GRACE)  # the others notice, too
            everyone = range(self.num_ranks)
            absent = [f"rank {r}" for r in everyone if not self.store.check([f"waits/{r}"])]
            verdict = f"{' and '.join(absent) or 'another rank'} did not come to {self.doing}"
        else:
            verdict = f"rank {self.rank} failed in {self.doing}: {type(error).__name__}: {error}"
        return self.store.compare_set(VERDICT, "", verdict).decode()


def is_lost_contact(error: Exception) -> bool:
    """Whether a collective failed because another rank is not there: that one is to be named."""
    return isinstance(error, dist.DistError) or "gloo/transport" in str(error)


def _different(facts: Mapping[str, object], is_different: Tensor) -> list[str]:
    return [name for name, flag in zip(facts, is_different.tolist(), strict=True) if flag]


def hash_of(fact: object) -> int:
    """8 bytes that differ if the fact differs; a tensor's type and shape belong to it.

    fact  a tensor, a list or tuple of facts, or something whose `repr` says all about it
    """
    digest = hashlib.blake2b(digest_size=8)
    if isinstance(fact, Tensor):
        digest.update(f"{fact.dtype} {list(fact.shape)} ".encode())
        numbers = fact.detach().cpu().flatten().contiguous()
        digest.update(numbers.view(torch.uint8).numpy().tobytes())
    elif type(fact) in (list, tuple):  # the repr of a tensor in it would leave numbers out
        digest.update(repr((type(fact), [hash_of(item) for item in fact])).encode())
    else:
        digest.update(repr(fact).encode())
    return int.from_bytes(digest.digest(), "little", signed=True)


@contextmanager
def joined(limit: float = LIMIT, end: Callable[[int, str], None] = say_and_exit) -> Iterator[Group]:
    """Inside, this process is a rank of the job that torchrun (or Ranks) has started.

    limit  seconds for which one rank may keep the others waiting in a collective
    end    of the Group. Whatever raises inside, on any rank, ends the job

    GPUs are used if there is one for each rank of this machine: nccl then, else gloo.

    Raises RuntimeError if this process was not started as a rank; ValueError if limit is no time.
    """
    if "RANK" not in os.environ:
        raise RuntimeError("this process is no rank: start it with torchrun, or use Ranks")
    require(0 < limit < inf, "limit", limit, "seconds, more than 0")
    store, rank, num_ranks = next(rendezvous("env://", timeout=timedelta(seconds=START)))
    store.set(f"here/{rank}", "")
    store.wait([f"here/{other}" for other in range(num_ranks)], timedelta(seconds=START))
    stay_on_this_mac(num_ranks)
    device = device_of_this_rank(rank, num_ranks)
    on_gpus, timeout = device.type == "cuda", timedelta(seconds=limit)
    backend = "nccl" if on_gpus else "gloo"
    dist.init_process_group(backend, store=store, rank=rank, world_size=num_ranks, timeout=timeout)
    try:
        control = dist.new_group(backend="gloo", timeout=timeout) if on_gpus else dist.group.WORLD
        patient = dist.new_group(backend="gloo", timeout=NEVER)
        mesh = init_device_mesh(device.type, (num_ranks,))
        group = Group(rank, num_ranks, device, store, control, patient, mesh, end)
        try:
            yield group
            dist.barrier(group=control)
        except Exception as error:
            group.fail(error)
            raise
    finally:
        # torch's threads end with the last reference to its group: not as late as at the end of
        # the process, when they could no more.
        group = control = patient = mesh = None
        dist.destroy_process_group()


def local_size(num_ranks: int) -> int:
    """How many of the ranks are on this machine."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", num_ranks))


def stay_on_this_mac(num_ranks: int) -> None:
    """Let gloo connect ranks of one Mac directly: few networks know the name of a Mac, and gloo
    looks for it."""
    if sys.platform == "darwin" and local_size(num_ranks) == num_ranks:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo0")


def device_of_this_rank(rank: int, num_ranks: int) -> torch.device:
    """A GPU, from now on the current one, if this machine has one for each of its ranks."""
    local_rank = int(os.environ.get("LOCAL_RANK", rank))
    if not torch.cuda.is_available() or torch.cuda.device_count() < local_size(num_ranks):
        return torch.device("cpu")
    torch.cuda.set_device(local_rank)
    return torch.device("cuda", local_rank)


def tcp_store(address: str, port: int, seconds: float, **options: bool) -> dist.TCPStore:
    """A connection to a job's store, or the store itself. torch's wheels for Windows are built
    without libuv, by which TCPStore works where nobody says otherwise."""
    timeout, use_libuv = timedelta(seconds=seconds), sys.platform != "win32"
    return dist.TCPStore(address, port, timeout=timeout, use_libuv=use_libuv, **options)
