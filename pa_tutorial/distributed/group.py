"""The ranks of a job: how one process joins the others, agrees with them, and leaves."""

import hashlib
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from math import inf

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.rendezvous import rendezvous

from pa_tutorial.arguments import require
from pa_tutorial.distributed.watch import START, TICK, Disagreement, Watch, say_and_exit
from pa_tutorial.private_names import get_sequence_number_for_group

LIMIT = 60.0  # seconds for which a rank may keep the others waiting
NEVER = timedelta(days=7)
SILENCE = 10.0  # seconds without a sign of life, after which it is lost


@dataclass
class Group:
    """The ranks, seen from one of them.

    device   where this rank's tensors are
    control  carries what the CPUs tell each other; always gloo
    mesh     the ranks as torch.distributed.tensor wants them: one row
    """

    rank: int
    num_ranks: int
    device: torch.device
    control: dist.ProcessGroup
    mesh: DeviceMesh
    watch: Watch

    def from_rank_0(self, message: object = None) -> object:
        """What rank 0 says, on every rank; the message of the others is not looked at."""
        box = [message]
        dist.broadcast_object_list(box, src=0, group=self.control)
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
def joined(
    limit: float = LIMIT,
    silence: float = SILENCE,
    end: Callable[[int, str], None] = say_and_exit,
) -> Iterator[Group]:
    """Inside, this process is a rank of the job that torchrun (or Ranks) has started.

    limit, silence, end  of the Watch. Whatever raises inside, on any rank, ends the job.

    GPUs are used if there is one for each rank of this machine: nccl then, else gloo.

    Raises RuntimeError if this process was not started as a rank; ValueError if limit or silence is
    too short for signs of life to arrive.
    """
    if "RANK" not in os.environ:
        raise RuntimeError("this process is no rank: start it with torchrun, or use Ranks")
    for name, seconds in (("limit", limit), ("silence", silence)):
        require(TICK < seconds < inf, name, seconds, f"seconds, more than {TICK:g}")
    store, rank, num_ranks = next(rendezvous("env://", timeout=timedelta(seconds=START)))
    stay_on_this_mac(num_ranks)
    device = device_of_this_rank(rank, num_ranks)
    groups: tuple[dist.ProcessGroup, ...] = ()

    def begun() -> int:
        return sum(map(get_sequence_number_for_group, groups))

    watch = Watch(_store_of_the_watch(), rank, num_ranks, begun, limit, silence, end)

    def note_signal(*_: object) -> None:
        # torchrun asks all others to end when one rank has died: stay, and say which.
        watch.asked_to_end = True

    before = signal.signal(signal.SIGTERM, note_signal)
    try:
        # Who waits too long is told by our watch. torch's own timeout knows no pause between
        # requests; between GPUs, which do not wait for requests, it is left as it is.
        on_gpus = device.type == "cuda"
        options = {} if on_gpus else {"timeout": NEVER}
        backend = "nccl" if on_gpus else "gloo"
        dist.init_process_group(backend, store=store, rank=rank, world_size=num_ranks, **options)
        control = dist.new_group(backend="gloo", timeout=NEVER) if on_gpus else dist.group.WORLD
        groups = (dist.group.WORLD, control) if on_gpus else (control,)
        mesh = init_device_mesh(device.type, (num_ranks,))
        group = Group(rank, num_ranks, device, control, mesh, watch)
        yield group
        dist.barrier(group=control)
        watch.leave()
        group.control = group.mesh = None
    except BaseException as error:
        watch.fail(error)
        raise
    finally:
        signal.signal(signal.SIGTERM, before)
        # torch's threads end with the last reference to its group: not as late as at the end of
        # the process, when they could no more.
        groups, group, control, mesh = (), None, None, None
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


def _store_of_the_watch() -> dist.Store:
    """A second connection to the job's store: one connection answers one question at a time."""
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = tcp_store(address, port, START)
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return dist.PrefixStore(f"watch/{attempt}", store)
