"""Ranks as processes of this machine, for a notebook or a test; a program uses torchrun."""

import atexit
import multiprocessing
import os
import pickle
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.context import BaseContext
from typing import Any, NoReturn

import numba
import torch

from pa_tutorial.arguments import require
from pa_tutorial.distributed.group import LIMIT, end_process, joined, tcp_store
from pa_tutorial.private_names import PLACE, cloudpickle

START_SECONDS = 120.0  # until all have imported torch and met
LEAVE_SECONDS = 10.0  # to leave the group


class RanksLost(RuntimeError):
    """The job has ended; the message names the rank that was the cause."""


class Ranks:
    """Processes that run the same function side by side, joined in one Group.

        with Ranks(2) as ranks:
            results = ranks.run(function, 1, 2)     # function(group, 1, 2) on each; one result each

    num_ranks  so many processes, each with one thread for torch and for Numba
    limit      seconds for which a rank may keep the others waiting in a collective

    The function may stand in a cell of a notebook: it is sent, with the globals that it uses. If
    it raises, or a process dies or hangs, `run` raises RanksLost and the job is over. Leaving the
    block ends the processes.
    """

    def __init__(self, num_ranks: int, limit: float = LIMIT) -> None:
        require(num_ranks >= 1, "num_ranks", num_ranks, "at least 1")
        self.num_ranks = num_ranks
        # Here, in no rank: it outlives all of them.
        self._store = tcp_store("127.0.0.1", 0, 5, is_master=True, wait_for_workers=False)
        context = _context()
        self._pipes: list[Connection] = []
        self._processes: list[multiprocessing.Process] = []
        for rank in range(num_ranks):
            mine, theirs = context.Pipe()
            arguments = theirs, rank, num_ranks, self._store.port, limit
            name = f"rank {rank}"
            process = context.Process(target=_live, args=arguments, name=name, daemon=True)
            process.start()
            theirs.close()  # so that the end of the process is the end of the pipe
            self._pipes.append(mine)
            self._processes.append(process)
        atexit.register(self.close)  # before multiprocessing's own end, which waits for them
        self._results(START_SECONDS)  # all have joined

    def __enter__(self) -> "Ranks":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def is_alive(self) -> bool:
        return bool(self._processes) and all(process.is_alive() for process in self._processes)

    def run(self, function: Callable[..., Any], *args: Any, **options: Any) -> list[Any]:
        """function(group, *args, **options) on every rank; what each returned, by rank.

        Raises RanksLost, after which these ranks are gone; they are, too, if this is interrupted.
        """
        if not self._processes:
            raise RanksLost("the ranks have ended already: start new ones")
        # Bytes, not objects: a tensor that is sent shares its memory with the one that is received.
        task = cloudpickle.dumps((function, args, options))
        for pipe in self._pipes:
            with suppress(OSError):  # nobody reads: it has died meanwhile, and is named below
                pipe.send_bytes(task)
        return self._results(None)

    def close(self) -> None:
        """End the processes; they leave the group first if they can."""
        self._end(LEAVE_SECONDS)

    def _end(self, seconds: float) -> None:
        """Let the processes end by themselves, for so long; then kill them."""
        atexit.unregister(self.close)
        for pipe in self._pipes:
            pipe.close()  # a rank that reads the end of its pipe leaves
        deadline = time.monotonic() + seconds
        for process in self._processes:
            process.join(max(0.0, deadline - time.monotonic()))
            if process.is_alive():
                process.kill()
                process.join()
        self._pipes, self._processes = [], []

    def _results(self, seconds: float | None) -> list[Any]:
        """One from each rank. If there is none, for whatever reason, the ranks are ended."""
        try:
            return self._wait_for_results(seconds)
        except BaseException:
            self._end(0)  # what they return now would be taken for the results of the next run
            raise

    def _wait_for_results(self, seconds: float | None) -> list[Any]:
        """RanksLost with the first last word of a rank, or at the first end of a process."""
        results: dict[int, Any] = {}
        deadline = None if seconds is None else time.monotonic() + seconds
        while len(results) < self.num_ranks:
            waiting = [pipe for rank, pipe in enumerate(self._pipes) if rank not in results]
            rest = None if deadline is None else max(0.0, deadline - time.monotonic())
            prepared = wait(waiting, rest)
            if not prepared:
                raise RanksLost(f"the ranks did not start within {seconds:g} s")
            for pipe in prepared:
                rank = self._pipes.index(pipe)
                try:
                    is_result, answer = pickle.loads(pipe.recv_bytes())
                except (EOFError, ConnectionError):
                    process = self._processes[rank]
                    process.join()
                    raise RanksLost(f"rank {rank} ended with code {process.exitcode}") from None
                if not is_result:
                    raise RanksLost(answer)
                results[rank] = answer
        return [results[rank] for rank in range(self.num_ranks)]


def _context() -> BaseContext:
    """How processes start: as forks of one that has imported everything and done nothing yet.

    So only the first ranks of a program wait for the imports. Where a process cannot be forked
    (Windows), or not after its imports (macOS), each process imports for itself.
    """
    if sys.platform != "linux":
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    # torch imports its compiler, for seconds, at the first call of a layer that is cut.
    runner = "pa_tutorial.distributed.runner"
    context.set_forkserver_preload([__name__, runner, PLACE["dynamo"]])
    return context


def _live(pipe: Connection, rank: int, num_ranks: int, port: int, limit: float) -> None:
    """What a process does: join, then one function after the other."""
    numba.set_num_threads(1)  # first: it starts its threads, and torch would have two again
    torch.set_num_threads(1)
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(num_ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",  # the store is there already
        "OMP_NUM_THREADS": "1",
    }

    def say_to_parent(_: int, verdict: str) -> NoReturn:
        with suppress(OSError):  # the parent may be gone
            pipe.send_bytes(pickle.dumps((False, verdict)))
        end_process(1)

    threading.Thread(target=_end_with_parent, daemon=True).start()
    with joined(limit, say_to_parent) as group:
        pipe.send_bytes(pickle.dumps((True, None)))
        while task := _next_task(pipe):
            function, args, options = pickle.loads(task)
            group.doing = getattr(function, "__name__", repr(function))
            pipe.send_bytes(cloudpickle.dumps((True, function(group, *args, **options))))
    end_process(0)


def _end_with_parent() -> NoReturn:
    """Whatever the function does that runs here: nobody would take its result."""
    multiprocessing.parent_process().join()
    end_process(1)


def _next_task(pipe: Connection) -> bytes | None:
    """None if the parent has closed, or is gone."""
    try:
        return pipe.recv_bytes()
    except (EOFError, ConnectionError):
        return None
