"""A rank that dies, hangs or fails ends the job, and every rank says which one it was.

A rank that waits in a collective cannot see why the others do not come. So each rank has a thread
that writes a sign of life into the job's store, and reads those of all others.
"""

import json
import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import NoReturn

import torch.distributed as dist

TICK = 0.2  # seconds between two signs of life
START = 300.0  # seconds in which all ranks must have started
GRACE = 2.0  # seconds in which all ranks leave, once one has left
VERDICT = "verdict"


class Disagreement(RuntimeError):
    """The ranks were about to compute different things."""


def say_and_exit(rank: int, verdict: str) -> NoReturn:
    """End this process, whatever its other threads are doing."""
    print(f"[rank {rank}] the job ends: {verdict}", file=sys.stderr, flush=True)
    sys.stdout.flush()
    os._exit(1)


def is_lost_contact(error: BaseException) -> bool:
    """Whether a collective failed because another rank is not there: that one is to be named."""
    return isinstance(error, dist.DistError) or "gloo/transport" in str(error)


class Watch:
    """The thread of one rank.

    store    seen by all ranks; a connection of its own, because a store answers one at a time
    begun    returns how many collectives this rank has begun
    limit    seconds for which one rank may keep the others waiting
    silence  seconds without a sign of life after which a rank is lost
    end      what is done at the end, with the rank and the verdict; it may not return

    A verdict is reached, on every rank, at most a second after
        a rank failed          fail() was called
        a rank died            silence: its process ended, or stands still as a whole
        a rank hangs           limit: it has begun fewer collectives than others, who wait for it
    The first verdict is kept in the store, and is that of all.

    is_resting  set by a rank that may let the others wait: then limit does not count

    Raises RuntimeError if not all ranks give a first sign within START seconds.
    """

    def __init__(
        self,
        store: dist.Store,
        rank: int,
        num_ranks: int,
        begun: Callable[[], int],
        limit: float,
        silence: float,
        end: Callable[[int, str], None] = say_and_exit,
    ) -> None:
        self.rank, self.num_ranks = rank, num_ranks
        self.limit, self.silence = limit, silence
        self.doing = "the start"
        self.asked_to_end = False  # by a signal
        self.is_resting: Callable[[], bool] = lambda: False
        self._store, self._begun, self._end = store, begun, end
        self._leaving = threading.Event()
        self._main = threading.main_thread().ident
        self._num_signs = 0
        self._signs: list[dict] = [{} for _ in range(num_ranks)]
        self._looked = time.monotonic()  # when this rank last read the signs
        self._heard = [self._looked] * num_ranks  # when the last sign of each rank came
        self._moved = self._looked  # when some rank last began a collective
        self._lost = 0.0  # since when this rank has no contact, or was asked to end
        self._give_sign()
        self._wait_for_all()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)
        self._thread.start()

    def _wait_for_all(self) -> None:
        keys = [f"sign/{rank}" for rank in range(self.num_ranks)]
        try:
            self._store.wait(keys, timedelta(seconds=START))
        except RuntimeError as error:
            absent = [f"rank {r}" for r, key in enumerate(keys) if not self._store.check([key])]
            raise RuntimeError(f"{' and '.join(absent)} did not start in {START:g} s") from error

    def fail(self, error: BaseException) -> None:
        """End the job because of an error in this rank; does not return.

        If the error is only that another rank is not there, the others' signs tell which.
        """
        if isinstance(error, Disagreement):
            self._reach(str(error))
        elif is_lost_contact(error):
            self._lost = self._lost or time.monotonic()
        else:
            self._reach(f"rank {self.rank} failed in {self.doing}: {describe(error)}")
        self._thread.join()

    def leave(self) -> None:
        """This rank needs the others no more."""
        self._leaving.set()
        self._thread.join()
        with suppress(RuntimeError):  # the store has gone with the process that kept it
            self._give_sign()  # the last one: who has left is not silent

    def _run(self) -> None:
        while not self._leaving.wait(TICK):
            try:
                self._give_sign()
                self._read_signs()
                verdict = self._judge()
                if verdict:
                    verdict = self._reach(verdict)
                    time.sleep(2 * TICK)  # the store may live in this process: let others read
            except RuntimeError as error:
                if self._leaving.wait(GRACE):  # all leave: the store's process was the first
                    return
                verdict = f"the store of the job is lost, and the process that kept it ({error})"
            if verdict:
                self._end(self.rank, verdict)
                return

    def _give_sign(self) -> None:
        self._num_signs += 1
        sign = {
            "number": self._num_signs,
            "begun": self._begun(),
            "doing": self.doing,
            "place": place_of(self._main),
            "left": self._leaving.is_set(),
            "resting": self.is_resting(),
        }
        self._store.set(f"sign/{self.rank}", json.dumps(sign))

    def _read_signs(self) -> None:
        now = time.monotonic()
        if now - self._looked > max(self.silence / 2, GRACE):
            # This process stood still, perhaps with all others: whom could it have heard?
            self._heard, self._moved = [now] * self.num_ranks, now
        self._looked = now
        texts = self._store.multi_get([f"sign/{other}" for other in range(self.num_ranks)])
        for other, (text, before) in enumerate(zip(texts, self._signs, strict=True)):
            sign = self._signs[other] = json.loads(text)
            if sign["number"] != before.get("number"):
                self._heard[other] = now
            if sign["begun"] != before.get("begun") or sign["resting"]:
                self._moved = now

    def _judge(self) -> str | None:
        """What ends the job; None if it goes on."""
        if self._store.check([VERDICT]):
            return self._store.get(VERDICT).decode()
        now = time.monotonic()
        for other, heard in enumerate(self._heard):
            if now - heard > self.silence and not self._signs[other]["left"]:
                return (
                    f"rank {other} gave no sign of life for {self.silence:g} s: "
                    "its process is dead, or stopped"
                )
        begun = [sign["begun"] for sign in self._signs]
        if now - self._moved > self.limit and min(begun) < max(begun):
            behind = [r for r, number in enumerate(begun) if number == min(begun)]
            where = "; ".join(
                f"rank {r} is in {self._signs[r]['doing']}, at {self._signs[r]['place']}"
                for r in behind
            )
            ranks = " and ".join(f"rank {r}" for r in behind)
            return f"{ranks} kept the others waiting for {self.limit:g} s ({where})"
        if self.asked_to_end:
            self._lost = self._lost or now
        if self._lost and now - self._lost > max(self.silence, TICK) + 5 * TICK:
            why = "it was asked to end" if self.asked_to_end else "it lost contact to another rank"
            return f"rank {self.rank}: {why}, and no rank is known to be dead"
        return None

    def _reach(self, verdict: str) -> str:
        """The first verdict of all ranks is the verdict."""
        return self._store.compare_set(VERDICT, "", verdict).decode()


def describe(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def place_of(thread: int | None) -> str:
    """What a thread is doing: function, file and line."""
    frame = sys._current_frames().get(thread)
    if frame is None:
        return "an unknown place"
    code = frame.f_code
    return f"{code.co_name}, {Path(code.co_filename).name}:{frame.f_lineno}"
