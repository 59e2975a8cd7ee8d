"""Ranks as processes: results by rank, a last word that is true, and no process left behind."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
import torch

from pa_tutorial.distributed import ranks as ranks_module
from pa_tutorial.distributed.ranks import Ranks, RanksLost
from tests.distributed import distributed_serving as serving
from tests.processes import still_there

LIMIT = 4.0
sends_signals = pytest.mark.needs("POSIX")


def pids_of(ranks: Ranks) -> list[int]:
    return [process.pid for process in ranks.processes.values()]


def lost(function: Callable, *args: object, num_ranks: int = 2) -> str:
    """The last word of a job; afterwards no process may be left, not even as a zombie."""
    with Ranks(num_ranks, LIMIT) as ranks:
        pids = pids_of(ranks)
        with pytest.raises(RanksLost) as caught:
            ranks.run(function, *args)
        assert not any(map(psutil.pid_exists, pids))
        with pytest.raises(RanksLost, match="have ended already: start new ones"):
            ranks.run(serving.rank_of)
    return str(caught.value)


# With three ranks, one that is alive must not be named because it notices later than another.
@pytest.mark.parametrize(
    ("kind", "rank", "num_ranks", "last_word"),
    [
        ("raise", 1, 3, "rank 1 failed in meet: ArithmeticError: a layer broke"),
        ("hang", 1, 3, "rank 1 did not come to meet"),
        pytest.param("kill", 0, 3, "rank 0 ended with code -9", marks=sends_signals),
        pytest.param("stop", 1, 2, "rank 1 did not come to meet", marks=sends_signals),
    ],
)
def test_the_last_word_names_the_rank_that_is_lost_and_no_other(
    kind: str, rank: int, num_ranks: int, last_word: str
) -> None:
    assert lost(serving.meet, kind, rank, num_ranks=num_ranks).startswith(last_word)


def test_a_rank_that_dies_between_two_runs_is_named() -> None:
    with Ranks(2, LIMIT) as ranks:
        ranks.run(serving.end_soon)
        list(ranks.processes.values())[1].join()
        with pytest.raises(RanksLost, match="rank 1 ended with code"):
            ranks.run(serving.rank_of)


def test_what_cannot_be_sent_back_is_said() -> None:
    said = lost(serving.a_lock, num_ranks=1)
    assert said.startswith("rank 0 failed in a_lock: ")
    assert "pickle" in said


def test_a_function_that_cannot_be_sent_leaves_the_ranks_as_they_are(ranks_of: Callable) -> None:
    ranks = ranks_of(2)
    with pytest.raises(TypeError, match="pickle"):
        ranks.run(serving.rank_of, threading.Lock())
    assert ranks.run(serving.rank_of) == [0, 1]


def test_a_tensor_is_sent_as_a_copy(ranks_of: Callable) -> None:
    """torch's own way shares the memory: what a rank writes, the parent and the others see."""
    numbers = torch.zeros(3)
    results = ranks_of(2).run(serving.write_to, numbers)
    assert [result.tolist() for result in results] == [[1.0] * 3, [2.0] * 3]
    assert numbers.tolist() == [0.0] * 3


@sends_signals
@pytest.mark.usefixtures("interrupts_arrive")
def test_an_interrupted_run_ends_the_ranks() -> None:
    """Else its results would be taken for those of the next run."""
    with Ranks(2) as ranks:
        pids = pids_of(ranks)
        main = threading.main_thread().ident
        threading.Timer(0.5, signal.pthread_kill, (main, signal.SIGINT)).start()
        with pytest.raises(KeyboardInterrupt):
            ranks.run(serving.sleep_on_all, 30.0)
        assert not any(map(psutil.pid_exists, pids))
        with pytest.raises(RanksLost, match="have ended already"):
            ranks.run(serving.rank_of)


@sends_signals
def test_a_rank_that_dies_while_starting_is_named_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The others wait for it, for minutes: they are ended."""
    started: list[int] = []
    Process = ranks_module._context().Process
    start = Process.start

    def start_and_kill(process: object) -> None:
        start(process)
        started.append(process.pid)
        if process.name == "rank 1":
            process.kill()

    monkeypatch.setattr(Process, "start", start_and_kill)
    with pytest.raises(RanksLost, match="rank 1 ended with code -9"):
        Ranks(2)
    assert len(started) == 2
    assert not any(map(psutil.pid_exists, started))


def test_no_ranks_are_refused() -> None:
    with pytest.raises(ValueError, match="num_ranks is 0; it must be at least 1"):
        Ranks(0)


# Like a notebook: the parent has no file that the ranks could import.
NOTEBOOK = """
from tests.distributed import distributed_serving as serving
from pa_tutorial.distributed.ranks import Ranks
ranks = Ranks(1)
print(*[p.pid for p in ranks.processes.values()], flush=True)
ranks.run(serving.sleep_on_all, 1000.0)
"""


@sends_signals
def test_no_rank_outlives_its_parent() -> None:
    """Which is killed in the middle of a run."""
    here, root = Path(__file__).parent, Path(__file__).parents[2]
    paths = os.pathsep.join((str(here), str(root), os.environ.get("PYTHONPATH", "")))
    options = {"env": os.environ | {"PYTHONPATH": paths}, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", NOTEBOOK], encoding="utf-8", **options) as parent:
        pids = [int(pid) for pid in parent.stdout.readline().split()]
        time.sleep(0.5)
        parent.kill()
        assert len(pids) == 1
        assert not still_there(pids, 20.0)


# The engine on ranks.


def test_a_pause_without_requests_may_be_longer_than_the_limit() -> None:
    with Ranks(2, limit=2) as ranks:
        assert ranks.run(serving.pause, 3.0) == [True, None]


def test_ranks_keep_to_one_thread_each(ranks_of: Callable) -> None:
    """Where Numba starts its threads with OpenMP, torch has as many from then on."""
    assert ranks_of(2).run(serving.threads_after_the_cpu_stage) == [(1, 1)] * 2


@pytest.mark.parametrize(
    ("model", "changed", "options", "different"),
    [
        ("biased", True, {}, "before the model is cut: rank 1 has other weights"),
        ("llama", False, {}, "before the model is cut: rank 1 has other sizes and weights"),
        ("biased", False, {"num_blocks": 31}, "before the first step: rank 1 has other cache"),
        ("biased", False, {"stage": "paged_gather"}, "step: rank 1 has other stage and cache"),
    ],
)
def test_ranks_that_differ_are_refused_before_anything_is_computed(
    ranks_of: Callable, model: str, changed: bool, options: dict, different: str
) -> None:
    for said in ranks_of(2).run(serving.serve_different, model, changed, **options):
        assert f"{different} than rank 0; nothing was computed" in said


@pytest.mark.parametrize("name", serving.COLLECTIVES)
def test_a_collective_is_counted_with_its_bytes(name: str, ranks_of: Callable) -> None:
    """And one that is unknown is not silently left out."""
    kinds = {"all_reduce": "all_reduce", "all_gather": "all_gather", "broadcast": "broadcast"}
    kinds |= {"sum of tensors": "all_reduce", "whole of tensors": "all_gather"}
    for said in ranks_of(2).run(serving.counted, name):
        if name == "not known":
            assert "Wire does not know how to count c10d" in said
        else:
            assert said == ([(kinds[name], 96)] if name in kinds else [])
