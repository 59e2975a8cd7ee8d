"""The race check against the definition: all accesses remembered, with full vector clocks."""

import random

import numpy as np
import pytest

from pa_tutorial.simt.gpus import WARP_SIZE
from pa_tutorial.simt.memory import Memory
from pa_tutorial.simt.races import Ordering, record

CELLS = 2


class Definition:
    """Two accesses race if neither happens before the other. Nothing is forgotten."""

    def __init__(self, num_threads: int) -> None:
        self.clocks = np.eye(num_threads, dtype=int)  # [thread, what it knows of each thread]
        self.history: list[tuple] = []  # thread, kind, cell, its own clock

    def meet(self, threads: np.ndarray) -> None:
        self.clocks[threads] = self.clocks[threads].max(axis=0)
        self.clocks[threads, threads] += 1

    def races(self, thread: int, kind: str, cell: int) -> bool:
        """Does this access race with an earlier one?"""
        found = any(
            other_cell == cell
            and other != thread
            and {kind, other_kind} not in ({"read"}, {"atomic"})
            and self.clocks[thread, other] < time
            for other, other_kind, other_cell, time in self.history
        )
        self.history.append((thread, kind, cell, self.clocks[thread, thread]))
        return found


class RandomRun:
    """Random accesses of up to three thread blocks, told to the definition and to the check.

    syncwarps  "none", "whole" (all lanes of a warp) or "masked"
    """

    def __init__(self, seed: int, kinds: tuple[str, ...], syncwarps: str) -> None:
        self.chance, self.kinds, self.syncwarps = random.Random(seed), kinds, syncwarps
        self.num_threads = self.chance.choice([4, 40, 70])
        self.num_blocks = self.chance.choice([1, 1, 2, 3])
        self.definition = Definition(self.num_threads * self.num_blocks)
        space = "shared" if self.num_blocks == 1 else "global"
        self.memory = Memory(np.zeros(4 * CELLS, np.uint8), space, 0, written=True)
        self.memory.split_cells(4)

    def first_race(self) -> tuple[bool, bool]:
        """At the first race that either sees: does the definition see it, does the check?"""
        interval = 1
        for block in range(self.num_blocks):
            order = Ordering(self.num_threads, interval)
            for _ in range(self.chance.randint(3, 25)):
                expected, found = self.step(order, block * self.num_threads)
                if expected or found:
                    return expected, found
            interval = order.interval + 1
        return False, False

    def step(self, order: Ordering, first: int) -> tuple[bool, bool]:
        """A barrier, a syncwarp, or an instruction of several lanes of a block."""
        dice = self.chance.random()
        if dice < 0.15:
            self.definition.meet(first + np.arange(self.num_threads))
            order.barrier()
        elif dice < 0.4 and self.syncwarps != "none":
            self.syncwarp(order, first)
        else:
            return self.access(order, first)
        return False, False

    def syncwarp(self, order: Ordering, first: int) -> None:
        warp = self.chance.randrange(-(-self.num_threads // WARP_SIZE))
        lanes = np.arange(min(WARP_SIZE, self.num_threads - WARP_SIZE * warp))
        if self.syncwarps == "masked":
            lanes = lanes[[self.chance.random() < 0.5 for _ in lanes]]
        if len(lanes):
            self.definition.meet(first + WARP_SIZE * warp + lanes)
            order.syncwarp(warp, lanes)

    def access(self, order: Ordering, first: int) -> tuple[bool, bool]:
        count = self.chance.choice([1, 1, 2, 3, self.num_threads])
        threads = np.array(sorted(self.chance.sample(range(self.num_threads), count)))
        cells = np.array([self.chance.randrange(CELLS) for _ in threads])
        if self.chance.random() < 0.5:
            cells[:] = cells[0]  # all lanes at one address
        kind = self.chance.choice(self.kinds)
        pairs = zip(threads, cells, strict=True)
        expected = [self.definition.races(first + int(t), kind, int(c)) for t, c in pairs]
        return any(expected), record(self.memory, kind, cells, threads, 0, order) is not None


KINDS = [("read", "write"), ("read",) * 5 + ("write",), ("read", "write", "atomic", "atomic")]


@pytest.mark.parametrize("syncwarps", ["none", "whole"])
@pytest.mark.parametrize("kinds", KINDS)
def test_the_first_race_is_found_and_none_is_invented(kinds: tuple, syncwarps: str) -> None:
    for seed in range(1500):
        expected, found = RandomRun(seed, kinds, syncwarps).first_race()
        assert found == expected, seed


@pytest.mark.parametrize("kinds", KINDS)
def test_masked_syncwarps_order_only_their_lanes(kinds: tuple[str, ...]) -> None:
    """Never a race that is none; and hardly ever one missed (see races.py)."""
    results = [RandomRun(seed, kinds, "masked").first_race() for seed in range(1500)]
    assert (False, True) not in results
    assert results.count((True, False)) <= 10, results.count((True, False))


def test_more_syncwarps_than_a_clock_can_count_are_an_error() -> None:
    order = Ordering(4, 1)
    for _ in range(65_534):
        order.syncwarp(0, np.arange(4))
    with pytest.raises(OverflowError, match="syncwarps between two barriers"):
        order.syncwarp(0, np.arange(4))
