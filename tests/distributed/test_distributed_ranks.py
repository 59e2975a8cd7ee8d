"""Ranks as processes: results by rank, errors that name the rank, and no process left behind."""

import functools
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import distributed_functions as functions
import psutil
import pytest
import torch
from processes import still_there

from pa_tutorial.distributed import ranks as ranks_module
from pa_tutorial.distributed.ranks import Ranks, RanksLost

LIMIT = 4.0
sends_signals = pytest.mark.needs("POSIX")


def none_is_left(pids: list[int]) -> bool:
    return not any(map(psutil.pid_exists, pids))


def pids_of(ranks: Ranks) -> list[int]:
    return [process.pid for process in ranks._processes]


def lost(function: Callable, *args: object, num_ranks: int = 2) -> RanksLost:
    """Run what ends the job; afterwards no process may be left, not even as a zombie."""
    with Ranks(num_ranks, LIMIT) as ranks:
        pids = pids_of(ranks)
        with pytest.raises(RanksLost) as caught:
            ranks.run(function, *args)
        assert none_is_left(pids)
        assert not ranks.is_alive
        with pytest.raises(RanksLost, match="have ended already"):
            ranks.run(functions.rank_of)
    return caught.value


def test_results_are_in_the_order_of_the_ranks(ranks_of: Callable) -> None:
    assert ranks_of(4).run(functions.rank_of) == [0, 1, 2, 3]


def test_an_error_names_the_rank_the_function_and_the_message() -> None:
    error = lost(functions.fail_on, 1, "lost the carry")
    assert str(error) == "rank 1 failed in fail_on: ArithmeticError: lost the carry"


@sends_signals
@pytest.mark.parametrize(("rank", "num_ranks"), [(0, 3), (1, 2)])
def test_a_killed_rank_is_named(rank: int, num_ranks: int) -> None:
    error = lost(functions.die_on, rank, num_ranks=num_ranks)
    assert str(error) == f"rank {rank} ended with code -9"


def test_a_rank_that_hangs_is_named() -> None:
    assert str(lost(functions.hang_on, 1)) == "rank 1 did not come to hang_on"


@sends_signals
def test_a_stopped_process_is_named_and_ended() -> None:
    """It can neither hear the verdict nor end by itself."""
    assert str(lost(functions.stop_on, 1)) == "rank 1 did not come to stop_on"


def test_a_rank_that_dies_between_two_runs_is_named() -> None:
    with Ranks(2, LIMIT) as ranks:
        ranks.run(functions.end_soon)
        ranks._processes[1].join()
        with pytest.raises(RanksLost, match="rank 1 ended with code"):
            ranks.run(functions.rank_of)


def test_what_cannot_be_sent_back_is_said() -> None:
    error = lost(functions.a_lock, num_ranks=1)
    assert str(error).startswith("rank 0 failed in a_lock: ")
    assert "pickle" in str(error)


def test_a_function_that_cannot_be_sent_leaves_the_ranks_as_they_are(ranks_of: Callable) -> None:
    ranks = ranks_of(2)
    with pytest.raises(TypeError, match="pickle"):
        ranks.run(functions.rank_of, threading.Lock())
    assert ranks.run(functions.rank_of) == [0, 1]


def test_a_function_of_a_cell_is_sent_with_the_globals_that_it_uses(ranks_of: Callable) -> None:
    cell = {"__name__": "__main__"}
    exec("SHIFT = 5\ndef add(x): return x + SHIFT\ndef work(group): return add(group.rank)", cell)
    assert ranks_of(2).run(cell["work"]) == [5, 6]


def test_a_function_without_a_name_can_be_run(ranks_of: Callable) -> None:
    half = functools.partial(functions.sleep_on_all, seconds=0.0)
    assert len(ranks_of(2).run(half)) == 2


def test_a_tensor_is_sent_as_a_copy(ranks_of: Callable) -> None:
    """torch's own way shares the memory: what a rank writes, the parent and the others see."""
    numbers = torch.zeros(3)
    results = ranks_of(2).run(functions.write_to, numbers)
    assert [result.tolist() for result in results] == [[1.0] * 3, [2.0] * 3]
    assert numbers.tolist() == [0.0] * 3


def test_ranks_may_be_closed_twice_and_then_refuse() -> None:
    ranks = Ranks(1)
    pids = pids_of(ranks)
    ranks.close()
    ranks.close()
    assert none_is_left(pids)
    with pytest.raises(RanksLost, match="have ended already: start new ones"):
        ranks.run(functions.rank_of)


@sends_signals
@pytest.mark.usefixtures("interrupts_arrive")
def test_an_interrupted_run_ends_the_ranks() -> None:
    """Else its results would be taken for those of the next run."""
    with Ranks(2) as ranks:
        pids = pids_of(ranks)
        main = threading.main_thread().ident
        timer = threading.Timer(0.5, signal.pthread_kill, (main, signal.SIGINT))
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            ranks.run(functions.sleep_on_all, 30.0)
        assert none_is_left(pids)
        with pytest.raises(RanksLost, match="have ended already"):
            ranks.run(functions.rank_of)
    assert not set(pids) & {child.pid for child in multiprocessing.active_children()}


@sends_signals
def test_a_rank_that_dies_while_starting_is_named_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The others wait for it, for minutes: they are ended."""
    started: list[int] = []
    Process = ranks_module._context().Process
    start = Process.start

    def start_and_kill(process: multiprocessing.Process) -> None:
        start(process)
        started.append(process.pid)
        if process.name == "rank 1":
            process.kill()

    monkeypatch.setattr(Process, "start", start_and_kill)
    before = time.monotonic()
    with pytest.raises(RanksLost, match="rank 1 ended with code -9"):
        Ranks(2)
    assert time.monotonic() - before < 8  # of the 10 in which others may end by themselves
    assert len(started) == 2
    assert none_is_left(started)


def test_ranks_that_do_not_start_in_time_are_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks_module, "START_SECONDS", 0.0)
    with pytest.raises(RanksLost, match=r"the ranks did not start within 0 s"):
        Ranks(1)


def test_no_ranks_are_refused() -> None:
    with pytest.raises(ValueError, match="num_ranks is 0; it must be at least 1"):
        Ranks(0)


# Like a notebook: the parent has no file that the ranks could import.
NOTEBOOK = """
import distributed_functions as functions
from pa_tutorial.distributed.ranks import Ranks
ranks = Ranks(1)
print(*ranks.run(functions.rank_of), *[p.pid for p in ranks._processes], flush=True)
{then}
"""


def notebook(then: str) -> subprocess.Popen:
    here, root = Path(__file__).parent, Path(__file__).parents[2]
    paths = os.pathsep.join((str(here), str(root), os.environ.get("PYTHONPATH", "")))
    return subprocess.Popen(
        [sys.executable, "-c", NOTEBOOK.format(then=then)],
        env=os.environ | {"PYTHONPATH": paths},
        stdout=subprocess.PIPE,
        encoding="utf-8",
    )


@pytest.mark.parametrize(
    ("then", "seconds"),
    [
        pytest.param("pass", 8.0, id="ends"),
        pytest.param(
            "ranks.run(functions.sleep_on_all, 1000.0)",
            20.0,
            id="killed",
            marks=sends_signals,
        ),
    ],
)
def test_no_rank_outlives_its_parent(then: str, seconds: float) -> None:
    """Not closed, but ended in peace; or killed in the middle of a run."""
    with notebook(then) as parent:
        result, *pids = map(int, parent.stdout.readline().split())
        assert result == 0
        if then != "pass":
            time.sleep(0.5)
            parent.kill()
        assert not still_there(pids, seconds)
        assert parent.wait() == (0 if then == "pass" else -signal.SIGKILL)


# The wire.


@pytest.mark.parametrize("name", functions.COLLECTIVES)
def test_a_collective_is_counted_with_its_bytes(name: str, ranks_of: Callable) -> None:
    for collectives, expected in ranks_of(2).run(functions.counted, name):
        assert collectives == expected


def test_sending_and_receiving_are_counted_where_they_are_done(ranks_of: Callable) -> None:
    sent, received = ranks_of(2).run(functions.point_to_point)
    assert [(c.name, c.num_bytes) for c in sent] == [("send", 48)]
    assert [(c.name, c.num_bytes) for c in received] == [("receive", 48)]


def test_an_unknown_collective_is_not_silently_left_out(ranks_of: Callable) -> None:
    for message in ranks_of(2).run(functions.unknown_to_the_wire):
        assert "Wire does not know how to count c10d" in message
