"""Work in several processes, which may hang, die or run out of time without harm to the others.

A wrong memory access on a GPU spoils all that its process does there afterwards, and compiling
holds one core a process: so work is shared out, and what died is begun anew behind the item that
it died of.
"""

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from multiprocessing import connection, get_context
from typing import Any

Work = Callable[[Any], Any]
WORKERS = max(1, min(12, (os.cpu_count() or 2) - 2))  # one core each, and some for the rest
RESULT, RAISED, DIED = "result", "raised", "died"


@dataclass
class Done:
    """What came of each item, by its place in the list that was given.

    results   what the work returned
    failed    in words, for items whose work raised or whose process died
    left_out  items for which there was no time
    """

    results: dict[int, Any] = field(default_factory=dict)
    failed: dict[int, str] = field(default_factory=dict)
    left_out: list[int] = field(default_factory=list)


def serve(work: Work, share: Sequence[tuple[int, Any]], pipe: connection.Connection) -> None:
    """In a process of its own: one answer an item, in their order. It ends at the first error:
    nobody knows what the device would still do right."""
    for place, item in share:
        try:
            pipe.send((place, RESULT, work(item)))
        except Exception as error:
            pipe.send((place, RAISED, in_a_line(error)))
            return


def in_a_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else ''}"


class Worker:
    """One process with its share of the items."""

    def __init__(self, work: Work, share: list[tuple[int, Any]]) -> None:
        self.work, self.share = work, share
        self.start()

    def start(self) -> None:
        context = get_context("spawn")  # CUDA does not survive a fork
        self.pipe, end = context.Pipe(duplex=False)
        self.process = context.Process(target=serve, args=(self.work, self.share, end))
        self.process.start()
        end.close()  # so that the pipe ends with the process

    def stop(self) -> None:
        self.process.kill()
        self.process.join()
        self.pipe.close()

    def receive(self, done: Done) -> bool:
        """Take one answer. False if there will be no more: the share is done."""
        try:
            place, how, answer = self.pipe.recv()
        except EOFError:
            self.process.join()
            place, how = self.share[0][0], DIED
            answer = f"its process ended with exit code {self.process.exitcode}"
        self.share = self.share[1:]
        if how == RESULT:
            done.results[place] = answer
        else:
            done.failed[place] = answer
        if self.share and how != RESULT:
            self.stop()
            self.start()
        return bool(self.share)


def run_in_pool(work: Work, items: Sequence[Any], workers: int, seconds: float) -> Done:
    """work(item) for every item, in so many processes.

    work     a function of a module, which each process imports anew
    seconds  then all processes are ended, whatever they do
    """
    end = time.monotonic() + seconds
    numbered = list(enumerate(items))
    shares = [numbered[first::workers] for first in range(workers)]
    done = Done()
    running = {}
    for share in filter(None, shares):
        worker = Worker(work, share)
        running[worker.pipe] = worker
    try:
        while running and time.monotonic() < end:
            for pipe in connection.wait(list(running), max(0.0, end - time.monotonic())):
                worker = running.pop(pipe)
                if worker.receive(done):
                    running[worker.pipe] = worker
                else:
                    worker.stop()
    finally:
        for worker in running.values():
            worker.stop()
    known = done.results.keys() | done.failed.keys()
    done.left_out = [place for place, _ in numbered if place not in known]
    return done
