"""Ranks as processes of this machine, for a notebook or a test; a program uses torchrun."""

import atexit
import multiprocessing
import os
import pickle
import sys
import time
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from multiprocessing.context import BaseContext
from typing import Any, NoReturn

import numba
import torch

from pa_tutorial.arguments import require
from pa_tutorial.distributed.group import LIMIT, SILENCE, joined, tcp_store
from pa_tutorial.private_names import PLACE, cloudpickle

START_SECONDS = 120.0  # until all have imported torch and met
LEAVE_SECONDS = 10.0  # to leave the group, or to hear why the job ends
WORDS = "words"


class RanksLost(RuntimeError):
    """The job has ended; the message names the rank that was the cause.

    words  rank -> what it said last; a rank that died said nothing
    """

    def __init__(self, message: str, words: dict[int, str]) -> None:
        super().__init__(message)
        self.words = words


class Ranks:
    """Processes that run the same function side by side, joined in one Group.

        with Ranks(2) as ranks:
            results = ranks.run(function, 1, 2)     # function(group, 1, 2) on each; one result each

    num_ranks       so many processes, each with one thread for torch and for Numba
    limit, silence  of the Watch

    The function may stand in a cell of a notebook: it is sent, with the globals that it uses. If
    it raises, or a process dies or hangs, `run` raises RanksLost and the job is over. Leaving the
    block ends the processes.
    """

    def __init__(self, num_ranks: int, limit: float = LIMIT, silence: float = SILENCE) -> None:
        require(num_ranks >= 1, "num_ranks", num_ranks, "at least 1")
        self.num_ranks = num_ranks
        self._limit, self._silence = limit, silence
        # Here, in no rank: it outlives all of them, and keeps what they said last.
        self._store = tcp_store("127.0.0.1", 0, 5, is_master=True, wait_for_workers=False)
        context = _context()
        self._pipes: list[Connection] = []
        self._processes: list[multiprocessing.Process] = []
        for rank in range(num_ranks):
            mine, theirs = context.Pipe()
            where = (rank, num_ranks, self._store.port)
            process = context.Process(
                target=_live,
                args=(theirs, *where, limit, silence),
                name=f"rank {rank}",
                daemon=True,
            )
            process.start()
            theirs.close()  # so that the end of the process is the end of the pipe
            self._pipes.append(mine)
            self._processes.append(process)
        self._has_started = False
        atexit.register(self.close)  # before multiprocessing's own end, which waits for them
        try:
            self._results(START_SECONDS)  # all have joined
        except BaseException:
            self._end(0)
            raise
        self._has_started = True

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
            raise RanksLost("the ranks have ended already: start new ones", {})
        # Bytes, not objects: a tensor that is sent shares its memory with the one that is received.
        task = cloudpickle.dumps((function, args, options))
        try:
            for pipe in self._pipes:
                pipe.send_bytes(task)
            return self._results(None)
        except OSError:  # nobody reads: a rank has died meanwhile
            self._lost()
        except BaseException:
            self._end(0)  # what they return now would be taken for the results of the next run
            raise

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
        """One from each rank; RanksLost if a process ends before it has sent its own."""
        results: dict[int, Any] = {}
        deadline = None if seconds is None else time.monotonic() + seconds
        while len(results) < self.num_ranks:
            waiting = [pipe for rank, pipe in enumerate(self._pipes) if rank not in results]
            rest = None if deadline is None else max(0.0, deadline - time.monotonic())
            prepared = wait(waiting, rest)
            if not prepared:
                self._lost(f"the ranks did not start within {seconds:g} s")
            for pipe in prepared:
                try:
                    results[self._pipes.index(pipe)] = pickle.loads(pipe.recv_bytes())
                except (EOFError, ConnectionError):
                    self._lost()
        return [results[rank] for rank in range(self.num_ranks)]

    def _lost(self, message: str | None = None) -> NoReturn:
        """Let the other ranks find out by themselves, and tell what they say."""
        deadline = time.monotonic() + LEAVE_SECONDS
        if self._has_started:
            deadline += self._limit + self._silence
        words: dict[int, str] = {}
        while time.monotonic() < deadline and any(p.is_alive() for p in self._processes):
            if not self._has_started and any(p.exitcode for p in self._processes):
                break  # the others would wait for it
            if not words and (words := self._words()):
                # The verdict is there. Who does not hear it now hangs, or is stopped.
                deadline = min(deadline, time.monotonic() + LEAVE_SECONDS)
            time.sleep(0.05)
        died = [
            f"{process.name} ended with code {process.exitcode}"
            for rank, process in enumerate(self._processes)
            if process.exitcode is not None and rank not in self._words()
        ]
        self._end(0)
        words = self._words()
        raise RanksLost(message or next(iter(words.values()), ", ".join(died)), words)

    def _words(self) -> dict[int, str]:
        keys = {rank: f"{WORDS}/{rank}" for rank in range(self.num_ranks)}
        return {r: self._store.get(k).decode() for r, k in keys.items() if self._store.check([k])}


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


def _live(
    pipe: Connection, rank: int, num_ranks: int, port: int, limit: float, silence: float
) -> None:
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

    def say_to_parent(rank: int, verdict: str) -> NoReturn:
        try:
            tcp_store("127.0.0.1", port, 5).set(f"{WORDS}/{rank}", verdict)
        finally:  # the parent may be gone, and its store
            os._exit(1)

    with joined(limit, silence, say_to_parent) as group:
        pipe.send_bytes(pickle.dumps(None))
        while True:
            group.watch.doing = "a pause"
            try:
                task = pipe.recv_bytes()
            except (EOFError, ConnectionError):  # the parent has closed, or is gone
                return
            function, args, options = pickle.loads(task)
            group.watch.doing = getattr(function, "__name__", repr(function))
            pipe.send_bytes(cloudpickle.dumps(function(group, *args, **options)))
