"""Ranks for a notebook or a test: torchrun's launcher, with functions instead of a program."""

import atexit
import logging
import multiprocessing
import os
import pickle
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from multiprocessing.connection import Connection
from multiprocessing.context import BaseContext
from tempfile import TemporaryDirectory
from typing import Any, NoReturn

import torch
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from pa_tutorial.arguments import whole_number
from pa_tutorial.distributed.group import LIMIT, joined, require_limit
from pa_tutorial.private_names import PLACE, cloudpickle
from pa_tutorial.tracebacks import ShortInNotebooks


class RanksLost(ShortInNotebooks, RuntimeError):
    """The job has ended; the message names the rank that caused it."""


class Ranks(ExitStack):
    """Processes that run the same function side by side, joined in one Group.

        with Ranks(2) as ranks:
            results = ranks.run(function, 1, 2)     # function(group, 1, 2) on each; one result each

    num_ranks  number of processes, each with one thread
    limit      seconds after which a rank that keeps the others waiting is named

    The function may be defined in a notebook's cell: it is sent with the globals that it uses. If
    it raises, or a process dies or hangs, `run` raises RanksLost and the job is over. Leaving the
    block, or calling `close`, ends the processes.
    """

    def __init__(self, num_ranks: int, limit: float = LIMIT) -> None:
        super().__init__()
        num_ranks = whole_number("num_ranks", num_ranks, least=1)
        require_limit(limit)
        context = _context()
        self.pipes, theirs = zip(*(context.Pipe() for _ in range(num_ranks)), strict=True)
        self.report, report = context.Pipe(duplex=False)
        self.last_word = "the ranks have ended already: start new ones"
        self.launcher = context.Process(target=_launch, args=(theirs, report, limit))
        self.launcher.start()
        self.callback(self.launcher.join)
        self.callback(self.launcher.terminate)  # before we wait for it
        atexit.register(self.close)
        for pipe in (*theirs, report):  # so that the pipes end when the processes end
            pipe.close()
        self.run(lambda _group: None)  # all have joined

    def run(self, function: Callable[..., Any], *args: Any, **options: Any) -> list[Any]:
        """Call function(group, *args, **options) on every rank, and return the results by rank.

        Raises RanksLost, after which these ranks are gone; an interrupt ends them too.
        """
        # Send bytes, not objects: a tensor would share its memory with the received one.
        task = cloudpickle.dumps((function, args, options))
        try:
            for pipe in self.pipes:
                pipe.send_bytes(task)
            return [pickle.loads(pipe.recv_bytes()) for pipe in self.pipes]
        except (EOFError, ConnectionError):  # the launcher and all ranks have ended
            with suppress(EOFError):
                self.last_word = self.report.recv()
            self.close()
            raise RanksLost(self.last_word) from None
        except BaseException:
            self.close()  # else the next run would take these results for its own
            raise


def _context() -> BaseContext:
    """The launcher starts as a fork of a process that has imported everything and done nothing
    else, so that only the first ranks of a program wait for the imports.

    Where a process can't be forked (Windows), or not after its imports (macOS), each process
    does its own imports.
    """
    if sys.platform != "linux":
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    # torch imports its compiler, which takes seconds, at the first call of a split layer.
    context.set_forkserver_preload([__name__, "pa_tutorial.distributed.runner", PLACE["dynamo"]])
    return context


def _launch(pipes: Sequence[Connection], report: Connection, limit: float) -> None:
    """Do what torchrun does: start the ranks, end all when one fails, and report which it was."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    logging.disable()  # RanksLost says it
    # The ranks meet through a file: torchrun's usual store is broken in torch's Windows packages.
    os.environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = str(int(sys.platform == "win32"))
    options = {"run_id": "ranks", "local_addr": "127.0.0.1", "max_restarts": 0}
    options |= {"rdzv_backend": "c10d", "rdzv_configs": {"store_type": "file"}}
    options |= {"start_method": "fork" if sys.platform == "linux" else "spawn"}
    with TemporaryDirectory() as folder, suppress(SignalException):  # by which `close` ends it
        options |= {"rdzv_endpoint": f"{folder}/store", "logs_specs": DefaultLogsSpecs(folder)}
        try:
            elastic_launch(LaunchConfig(1, 1, len(pipes), **options), _live)(pipes, limit)
        except ChildFailedError as failed:
            rank, failure = failed.get_first_failure()
            if isinstance(failure.message, str):  # it left no message
                report.send(f"rank {rank} ended with code {failure.exitcode}")
            else:
                report.send(f"rank {rank}: {failure.message['message'].splitlines()[0]}")


def _live(pipes: Sequence[Connection], limit: float) -> NoReturn:
    """A rank joins, then runs one function after another."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(1)
    with joined(limit) as group:
        pipe = pipes[group.rank]
        while True:
            function, args, options = pickle.loads(pipe.recv_bytes())
            group.doing = getattr(function, "__name__", repr(function))
            pipe.send_bytes(cloudpickle.dumps(function(group, *args, **options)))


def _end_with_parent() -> NoReturn:
    """End with the parent, even during a function, whose result couldn't be delivered."""
    multiprocessing.parent_process().join()
    os._exit(1)
