"""Ranks inside one process, as threads: how answers that talk to each other are graded."""

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pa_tutorial.walk.calls import AnswerError

MOST_SECONDS = 10.0


def other_slots(rng: np.random.Generator, name: str, sizes: tuple) -> tuple[str | None, tuple]:
    """For a case of own_slots: positions in the same logical blocks, and other block numbers.

    No block has the number of its place in the table; 0, where a rank has no block, stays.
    """
    positions, tables, block_size = sizes
    start, last = positions[0], positions[-1]
    if start:
        start += int(rng.integers(block_size - start % block_size))
    last += int(rng.integers(block_size)) - last % block_size
    if len(positions) == 1:
        last = start
    other_tables = []
    for table in tables:
        numbers = rng.choice(np.arange(len(table), 60), len(table), replace=False).tolist()
        other_tables.append(table if table == [0] else numbers)
    words = "one rank: slots as in notebook 04" if name == "one_rank" else None
    return words, (range(start, last + 1), tuple(other_tables), block_size)


class Meeting:
    """A network between threads: the all-reduces that an answer may call, and what they carried.

    numbers  how many numbers each rank has put in
    """

    def __init__(self, num_ranks: int) -> None:
        self.num_ranks = num_ranks
        self.numbers = [0] * num_ranks
        self._received: list[tuple[str, Tensor] | None] = [None] * num_ranks
        self._barrier = threading.Barrier(num_ranks, timeout=MOST_SECONDS)

    def all_reduce(self, rank: int, name: str, tensor: Tensor) -> Tensor:
        if not isinstance(tensor, Tensor):
            raise AnswerError(f"{name} got a {type(tensor).__name__}; it takes a tensor")
        self.numbers[rank] += tensor.numel()
        self._received[rank] = name, tensor.detach().clone()
        self._wait()
        received = list(self._received)
        self._wait()  # nobody puts in the next one before all have taken this one
        if len({(other, tuple(theirs.shape)) for other, theirs in received}) > 1:
            raise AnswerError("the ranks called different all-reduces, or with other shapes")
        stacked = torch.stack([theirs for _, theirs in received])
        return stacked.amax(dim=0) if name == "all_max" else stacked.sum(dim=0)

    def _wait(self) -> None:
        try:
            self._barrier.wait()
        except threading.BrokenBarrierError:
            raise AnswerError("a rank waited in an all-reduce that another never called") from None

    def abort(self) -> None:
        self._barrier.abort()


def on_ranks(num_ranks: int, work: Callable[[int, Meeting], Any]) -> tuple[list[Any], Meeting]:
    """work(rank, meeting) on each rank, side by side; what each returned.

    Raises the first error of a rank; rather its own than that it waited in vain.
    """
    meeting = Meeting(num_ranks)
    results: list[Any] = [None] * num_ranks
    errors: list[tuple[int, Exception]] = []

    def live(rank: int) -> None:
        try:
            results[rank] = work(rank, meeting)
        except Exception as error:
            errors.append((rank, error))
            meeting.abort()

    threads = [threading.Thread(target=live, args=(rank,)) for rank in range(num_ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0][1]
    return results, meeting
