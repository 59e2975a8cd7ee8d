"""Ranks as processes: results by rank, a last word that is true, and no process left behind."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable

import psutil
import pytest
import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import ErrorHandler

from pa_tutorial.distributed import ranks
from pa_tutorial.distributed.group import Group, hash_of
from pa_tutorial.distributed.ranks import Ranks, RanksLost
from pa_tutorial.distributed.runner import serve
from pa_tutorial.distributed.wire import Wire
from pa_tutorial.engine import LLM
from pa_tutorial.engine.llm import load_model
from tests.distributed.distributed_serving import new_model
from tests.processes import still_there

LIMIT = 4.0  # seconds that a rank waits for the others
sends_signals = pytest.mark.needs("POSIX")


def pid(_group: Group) -> int:
    return os.getpid()


def broken() -> None:
    raise ArithmeticError("a layer broke")


# With three ranks, one that is alive must not be named because it notices later than another.
@pytest.mark.rest(keep=["raise", "exit"])
@pytest.mark.parametrize(
    ("harm", "rank", "last_word"),
    [
        (broken, 1, "rank 1: ArithmeticError: a layer broke"),
        (threading.Lock, 0, "rank 0: TypeError: cannot pickle"),  # the result
        (lambda: time.sleep(1000), 1, "rank 0: RuntimeError: [Rank 0]: Ranks 1 failed to pass"),
        (lambda: os._exit(3), 1, "rank 1 ended with code 3"),
    ],
    ids=["raise", "no result", "hang", "exit"],
)
def test_the_last_word_names_the_rank_that_is_lost_and_no_other(
    harm: Callable, rank: int, last_word: str
) -> None:
    """And afterwards no process is left, not even as a zombie."""

    def meet(group: Group) -> object:
        if group.rank == rank:
            return harm()
        return dist.all_reduce(torch.zeros(1))

    with Ranks(3, LIMIT) as ranks:
        pids = ranks.run(pid)
        with pytest.raises(RanksLost) as caught:
            ranks.run(meet)
        assert not any(map(psutil.pid_exists, pids))
        with pytest.raises(RanksLost):
            ranks.run(pid)
    assert last_word.lower() in str(caught.value).lower()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [((0,), "num_ranks is 0"), ((2, 0), "limit is 0"), ((2, 10**400), "limit is 1000")],
    ids=["no rank", "no time", "too much time"],
)
def test_bad_arguments_are_refused_before_a_process_starts(
    arguments: tuple, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranks, "_context", None)
    with pytest.raises(ValueError, match=message):
        Ranks(*arguments)


def test_a_rank_that_dies_between_two_runs_is_named() -> None:
    def end_soon(group: Group) -> None:
        if group.rank == 1:
            threading.Timer(0.3, os._exit, (7,)).start()

    with Ranks(2, LIMIT) as ranks:
        ranks.run(end_soon)
        ranks.launcher.join()
        with pytest.raises(RanksLost, match="rank 1 ended with code 7"):
            ranks.run(pid)


def test_a_tensor_is_sent_as_a_copy(ranks_of: Callable) -> None:
    """torch's own way shares the memory: what a rank writes, the parent and the others see."""
    numbers = torch.zeros(3)
    results = ranks_of(2).run(lambda group, sent: sent.add_(1 + group.rank), numbers)
    assert [result.tolist() for result in results] == [[1.0] * 3, [2.0] * 3]
    assert numbers.tolist() == [0.0] * 3


@sends_signals
@pytest.mark.usefixtures("interrupts_arrive")
def test_an_interrupted_run_ends_the_ranks() -> None:
    """Else its results would be taken for those of the next run."""
    with Ranks(2) as ranks:
        pids = ranks.run(pid)
        main = threading.main_thread().ident
        threading.Timer(0.5, signal.pthread_kill, (main, signal.SIGINT)).start()
        with pytest.raises(KeyboardInterrupt):
            ranks.run(lambda _group: time.sleep(30))
        assert not any(map(psutil.pid_exists, pids))
        with pytest.raises(RanksLost, match="have ended already: start new ones"):
            ranks.run(pid)


# Like a notebook: the parent has no file that the ranks could import.
NOTEBOOK = """
import os, time
from pa_tutorial.distributed.ranks import Ranks
ranks = Ranks(1)
print(*ranks.run(lambda group: (os.getpid(), os.getppid())), flush=True)
ranks.run(lambda group: time.sleep({seconds}))
"""


@pytest.mark.rest
@sends_signals
@pytest.mark.parametrize("seconds", [1000, 0], ids=["killed", "ends"])
def test_no_rank_outlives_its_parent(seconds: int) -> None:
    """Which is killed in the middle of a run, or ends without a word."""
    program = [sys.executable, "-c", NOTEBOOK.format(seconds=seconds)]
    with subprocess.Popen(program, encoding="utf-8", stdout=subprocess.PIPE) as parent:
        pids = [int(number) for number in parent.stdout.readline().strip("()\n").split(",")]
        if seconds:
            parent.kill()
        parent.wait(20)
        assert not still_there(pids, 20.0)


def test_a_failing_rank_leaves_its_number_and_what_it_was_doing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where torchrun looks for it; then the process ends at once."""
    recorded = []
    monkeypatch.setattr(ErrorHandler, "record_exception", lambda _, error: recorded.append(error))
    monkeypatch.setattr(os, "_exit", sys.exit)
    group = Group(1, 2, torch.device("cpu"), *[None] * 3, doing="step 2")
    with pytest.raises(SystemExit, match="1"):
        group.fail(ArithmeticError("a layer broke"))
    (last_word,) = recorded
    assert repr(last_word) == "ArithmeticError('a layer broke')"
    assert last_word.__notes__ == ["This is rank 1, in step 2."]


@pytest.mark.rest
def test_a_pause_without_requests_may_be_longer_than_the_limit() -> None:
    def pause(llm: LLM) -> list[str | None]:
        llm.generate(["The for"], progress=False)
        time.sleep(3)
        return [done.error for done in llm.generate(["The while"], progress=False)]

    with Ranks(2, limit=2) as ranks:
        assert ranks.run(lambda group: serve(*load_model("tiny"), group, pause)) == [[None], None]


@pytest.mark.parametrize(
    ("model", "changed", "options"),
    [("biased", 1, {}), ("llama", 0, {}), ("biased", 0, {"num_blocks": 31})],
    ids=["a weight", "sizes", "options"],
)
def test_ranks_that_differ_are_refused_before_anything_is_computed(
    ranks_of: Callable, model: str, changed: int, options: dict
) -> None:
    def serve_different(group: Group) -> str:
        mine = new_model(model if group.rank == 1 else "biased")
        mine.norm.weight[0] += changed * group.rank
        try:
            serve(mine, None, group, LLM.generate, **(options if group.rank == 1 else {}))
        except RuntimeError as error:  # on every rank at the same point: they can go on
            return str(error)

    refusal = "before the model is split: ranks [1] differ from rank 0; nothing was computed"
    assert ranks_of(2).run(serve_different) == [refusal] * 2


def test_a_hash_is_of_the_numbers_the_type_and_the_shape() -> None:
    """All these have the same bytes. A column of a matrix is as good as its copy."""
    zeros = torch.zeros(4), torch.zeros(2, 2), torch.zeros(4, dtype=torch.int32), torch.ones(4)
    hashes = {hash_of(fact).item() for fact in (*zeros, *range(1000))}
    assert len(hashes) == 1004
    assert min(hashes) < -(2**61), "8 bytes"
    column = torch.arange(6).reshape(2, 3)[:, 1]
    assert hash_of(column, 1) == hash_of(column.clone(), 1) != hash_of(column)


def test_a_collective_that_is_not_known_is_refused_and_a_barrier_carries_nothing(
    ranks_of: Callable,
) -> None:
    def counted(_group: Group) -> list:
        with Wire() as wire:
            dist.barrier()
            with pytest.raises(NotImplementedError, match="how to count c10d"):
                dist.all_to_all_single(torch.zeros(2), torch.zeros(2))
        return wire.collectives

    assert ranks_of(2).run(counted) == [[], []]
