"""Ranks as processes of this machine, for a notebook or a test; a program uses torchrun."""

import multiprocessing
import os
import pickle
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack, suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.context import BaseContext
from typing import Any, NoReturn

import numba
import torch
import torch.distributed as dist

from pa_tutorial.arguments import require
from pa_tutorial.distributed.group import LIMIT, joined
from pa_tutorial.private_names import PLACE, cloudpickle


class RanksLost(RuntimeError):
    """The job has ended; the message names the rank that was the cause."""


class Ranks(ExitStack):
    """Processes that run the same function side by side, joined in one Group.

        with Ranks(2) as ranks:
            results = ranks.run(function, 1, 2)     # function(group, 1, 2) on each; one result each

    num_ranks  so many processes, each with one thread for torch and for Numba
    limit      seconds for which a rank may keep the others waiting in a collective

    The function may stand in a cell of a notebook: it is sent, with the globals that it uses. If
    it raises, or a process dies or hangs, `run` raises RanksLost and the job is over. Leaving the
    block, or `close`, ends the processes.
    """

    def __init__(self, num_ranks: int, limit: float = LIMIT) -> None:
        super().__init__()
        require(num_ranks >= 1, "num_ranks", num_ranks, "at least 1")
        self.store = new_store()  # here, in no rank: it outlives all of them
        self.processes: dict[Connection, multiprocessing.Process] = {}  # by rank
        context = _context()
        for rank in range(num_ranks):
            pipe, theirs = context.Pipe()
            arguments = theirs, rank, num_ranks, self.store.port, limit
            name = f"rank {rank}"
            process = context.Process(target=_live, args=arguments, name=name, daemon=True)
            process.start()
            theirs.close()  # so that the end of the process is the end of the pipe
            self.processes[pipe] = process
            self.callback(self._end, pipe)
        self._results()  # all have joined

    def run(self, function: Callable[..., Any], *args: Any, **options: Any) -> list[Any]:
        """function(group, *args, **options) on every rank; what each returned, by rank.

        Raises RanksLost, after which these ranks are gone; they are, too, if this is interrupted.
        """
        if not self.processes:
            raise RanksLost("the ranks have ended already: start new ones")
        # Bytes, not objects: a tensor that is sent shares its memory with the one that is received.
        task = cloudpickle.dumps((function, args, options))
        for pipe in self.processes:
            with suppress(OSError):  # nobody reads: it has died meanwhile, and is named below
                pipe.send_bytes(task)
        return self._results()

    def _end(self, pipe: Connection) -> None:
        process = self.processes.pop(pipe)
        process.kill()
        process.join()
        pipe.close()

    def _results(self) -> list[Any]:
        """One from each rank. If there is none, for whatever reason, the ranks are ended."""
        try:
            return self._wait_for_results()
        except BaseException:
            self.close()  # what they return now would be taken for the results of the next run
            raise

    def _wait_for_results(self) -> list[Any]:
        """RanksLost at the first last word of a rank, or the first end of a process."""
        results: dict[Connection, Any] = {}
        while waiting := [pipe for pipe in self.processes if pipe not in results]:
            results |= {pipe: self._result_from(pipe) for pipe in wait(waiting)}
        return [results[pipe] for pipe in self.processes]

    def _result_from(self, pipe: Connection) -> Any:
        try:
            is_result, answer = pickle.loads(pipe.recv_bytes())
        except (EOFError, ConnectionError):
            process = self.processes[pipe]
            process.join()
            raise RanksLost(f"{process.name} ended with code {process.exitcode}") from None
        if not is_result:
            raise RanksLost(answer)
        return answer


def new_store() -> dist.TCPStore:
    """Where ranks meet. torch's wheels for Windows lack libuv, by which it works elsewhere."""
    options = {"is_master": True, "wait_for_workers": False}
    return dist.TCPStore("127.0.0.1", 0, use_libuv=sys.platform != "win32", **options)


def _context() -> BaseContext:
    """How processes start: as forks of one that has imported everything and done nothing yet.

    So only the first ranks of a program wait for the imports. Where a process cannot be forked
    (Windows), or not after its imports (macOS), each process imports for itself.
    """
    if sys.platform != "linux":
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    # torch imports its compiler, for seconds, at the first call of a layer that is cut.
    context.set_forkserver_preload([__name__, "pa_tutorial.distributed.runner", PLACE["dynamo"]])
    return context


def _live(pipe: Connection, rank: int, num_ranks: int, port: int, limit: float) -> None:
    """What a process does: join, then one function after the other."""
    numba.set_num_threads(1)  # first: it starts its threads, and torch would have two again
    torch.set_num_threads(1)
    own, all_of_us = str(rank), str(num_ranks)
    os.environ |= {"RANK": own, "WORLD_SIZE": all_of_us, "MASTER_ADDR": "127.0.0.1"}
    os.environ |= {"LOCAL_RANK": own, "LOCAL_WORLD_SIZE": all_of_us, "MASTER_PORT": str(port)}
    os.environ |= {"OMP_NUM_THREADS": "1", "TORCHELASTIC_USE_AGENT_STORE": "True"}  # that of Ranks

    def say(last_word: str) -> None:
        with suppress(OSError):  # the parent may be gone
            pipe.send_bytes(pickle.dumps((False, last_word)))

    threading.Thread(target=_end_with_parent, daemon=True).start()
    with joined(limit, say) as group:
        pipe.send_bytes(pickle.dumps((True, None)))
        while True:
            function, args, options = pickle.loads(pipe.recv_bytes())
            group.doing = getattr(function, "__name__", repr(function))
            pipe.send_bytes(cloudpickle.dumps((True, function(group, *args, **options))))


def _end_with_parent() -> NoReturn:
    """Whatever the function does that runs here: nobody would take its result."""
    multiprocessing.parent_process().join()
    os._exit(1)
