"""Ranks as processes of this machine, for a notebook or a test; a program uses torchrun."""

import multiprocessing
import os
import time
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from typing import Any, NoReturn

import torch
import torch.distributed as dist

from pa_tutorial.arguments import require
from pa_tutorial.distributed.group import LIMIT, SILENCE, joined

START_SECONDS = 120.0  # until all have imported torch and met
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

    num_ranks       so many processes, each with one thread for torch
    limit, silence  of the Watch

    The function must stand in a module: the processes import it. If it raises, or a process dies
    or hangs, `run` raises RanksLost and the job is over. Leaving the block ends the processes.
    """

    def __init__(self, num_ranks: int, limit: float = LIMIT, silence: float = SILENCE) -> None:
        require(num_ranks >= 1, "num_ranks", num_ranks, "at least 1")
        self.num_ranks = num_ranks
        # Here, in no rank: it outlives all of them, and keeps what they said last.
        self._store = dist.TCPStore(
            "127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=5)
        )
        context = multiprocessing.get_context("spawn")
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
        try:
            self._results(START_SECONDS)  # all have joined
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> "Ranks":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def is_alive(self) -> bool:
        return bool(self._processes) and all(process.is_alive() for process in self._processes)

    def run(self, function: Callable[..., Any], *args: Any, **options: Any) -> list[Any]:
        """function(group, *args, **options) on every rank; what each returned, by rank.

        Raises RanksLost, after which these ranks are gone.
        """
        if not self.is_alive:
            raise RanksLost("the ranks have ended already: start new ones", {})
        for pipe in self._pipes:
            pipe.send((function, args, options))
        return self._results(None)

    def close(self) -> None:
        """End the processes; they leave the group first if they can."""
        for pipe in self._pipes:
            pipe.close()  # a rank that reads the end of its pipe leaves
        deadline = time.monotonic() + 10
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
            ready = wait(waiting, rest)
            if not ready:
                self._lost(f"the ranks did not start within {seconds:g} s")
            for pipe in ready:
                try:
                    results[self._pipes.index(pipe)] = pipe.recv()
                except EOFError:
                    self._lost()
        return [results[rank] for rank in range(self.num_ranks)]

    def _lost(self, message: str | None = None) -> NoReturn:
        """Let the other ranks find out by themselves, and tell what they say."""
        codes = {}
        for rank, process in enumerate(self._processes):
            process.join()  # the watch of each rank ends it
            codes[rank] = process.exitcode
        said = {rank: f"{WORDS}/{rank}" for rank in codes}
        words = {r: self._store.get(k).decode() for r, k in said.items() if self._store.check([k])}
        self.close()
        died = ", ".join(
            f"rank {r} ended with code {c}" for r, c in codes.items() if r not in words
        )
        raise RanksLost(message or next(iter(words.values()), died), words)


def _live(
    pipe: Connection, rank: int, num_ranks: int, port: int, limit: float, silence: float
) -> None:
    """What a process does: join, then one function after the other."""
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
        dist.TCPStore("127.0.0.1", port, is_master=False).set(f"{WORDS}/{rank}", verdict)
        os._exit(1)

    with joined(limit, silence, say_to_parent) as group:
        pipe.send(None)
        while True:
            group.watch.doing = "a pause"
            try:
                function, args, options = pipe.recv()
            except EOFError:  # the parent has closed, or is gone
                return
            group.watch.doing = function.__name__
            pipe.send(function(group, *args, **options))
