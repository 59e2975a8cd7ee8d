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

from pa_tutorial.distributed.group import Group
from pa_tutorial.distributed.ranks import Ranks, RanksLost
from pa_tutorial.distributed.runner import serve
from pa_tutorial.engine import LLM
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
        (lambda: time.sleep(1000), 1, "rank 0: RuntimeError: [Rank 0]: Ranks 1 failed to pass"),
        (lambda: os._exit(3), 1, "rank 1 ended with code 3"),
    ],
    ids=["raise", "hang", "exit"],
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
    ("arguments", "message"), [((0,), "num_ranks is 0"), ((2, 10**400), "limit is 1000")]
)
def test_bad_arguments_are_refused(arguments: tuple, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Ranks(*arguments)


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
ranks.run(lambda group: time.sleep(1000))
"""


@pytest.mark.rest
@sends_signals
def test_no_rank_outlives_a_parent_that_is_killed_in_the_middle_of_a_run() -> None:
    program = [sys.executable, "-c", NOTEBOOK]
    with subprocess.Popen(program, encoding="utf-8", stdout=subprocess.PIPE) as parent:
        pids = [int(number) for number in parent.stdout.readline().strip("()\n").split(",")]
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
