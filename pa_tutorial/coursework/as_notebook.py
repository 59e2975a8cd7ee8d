"""A submitted notebook, run as JupyterLab runs it: IPython takes every cell, one after the other.

What a student's notebook gives to `attempt` is tried with other numbers at once, while the names
that it uses are what they were; then the notebook goes on.
"""

import asyncio
import io
import re
import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout
from functools import partial

from ipykernel.zmqshell import ZMQInteractiveShell
from IPython.core.compilerop import CachingCompiler
from IPython.core.displayhook import DisplayHook
from IPython.core.displaypub import DisplayPublisher
from IPython.core.interactiveshell import ExecutionResult
from traitlets import Type
from traitlets.config import Config

from pa_tutorial import exercises
from pa_tutorial.checks.calls import AnswerError
from pa_tutorial.checks.running import Trial
from pa_tutorial.coursework.report import Report, without_references
from pa_tutorial.exercises.blank import Blank
from pa_tutorial.exercises.blank_verdict import not_a_try
from pa_tutorial.exercises.tasks import Assignment

QUIET = Config({"HistoryManager": {"enabled": False}})
GOES_ON = re.compile(r"^The notebook goes on with .*\n?", re.MULTILINE)


class CellNames(CachingCompiler):
    """Gives a cell's code the name of the cell; its number is the execution count."""

    def get_code_name(self, raw_code: str, transformed_code: str, number: int) -> str:
        return f"<cell {number}>"


class Shell(ZMQInteractiveShell):
    """Jupyter's shell without its kernel: what it displays is printed as text."""

    displayhook_class, display_pub_class = Type(DisplayHook), Type(DisplayPublisher)

    def enable_gui(self, *_: object) -> None:
        """For `%matplotlib inline`; there are no windows."""

    def showtraceback(self, *_: object, **__: object) -> None:
        """The grader says it; to draw it can take seconds, even after an interrupt."""

    def _showtraceback(self, *_: object) -> None:
        """The same, of a syntax error."""

    def _format_exception_for_storage(self, *_: object, **__: object) -> dict:
        """The same, for the history: IPython 9 draws it once more."""
        return {}


class Printed(io.StringIO):
    """What a cell prints, with what else code asks of standard output."""

    encoding, name = "utf-8", "<stdout>"

    def fileno(self) -> int:
        return 1  # where nothing is kept


class NotebookRun:
    """One run of a notebook, without pictures."""

    def __init__(self, report: Report, one: Assignment, draw: int) -> None:
        self.report, self.one, self.draw = report, one, draw
        self.printed, self.loop = Printed(), asyncio.new_event_loop()
        self.shell = Shell.instance(config=QUIET)
        self.shell.compile = CellNames()
        self.shell.display_formatter.active_types = ["text/plain"]
        exercises.ON_ATTEMPT.append(self.try_fresh)

    def steps(self, cells: Sequence[str | None]) -> dict[int, Callable[[], None]]:
        """The cells that run, by their number, from 1; None is a cell that doesn't."""
        return {n: partial(self.run, n, c) for n, c in enumerate(cells, 1) if c is not None}

    def run(self, number: int, source: str) -> None:
        self.shell.execution_count, self.printed = number, Printed()
        with redirect_stdout(self.printed), redirect_stderr(Printed()):
            done = self.loop.run_until_complete(self.run_cell(source))
        if error := done.error_before_exec or done.error_in_exec:
            self.report.say_error(error)
        if "matplotlib.pyplot" in sys.modules:
            sys.modules["matplotlib.pyplot"].close("all")

    async def run_cell(self, source: str) -> ExecutionResult:
        """As a kernel does it, whose loop is running."""
        given = {"store_history": True, "transformed_cell": source}
        try:
            given["transformed_cell"] = self.shell.transform_cell(source)
        except Exception:
            given["preprocessing_exc_tuple"] = sys.exc_info()
        return await self.shell.run_cell_async(source, **given)

    def try_fresh(self, name: str, function: Callable, is_right: bool) -> None:
        """Try an answer with other numbers, right after its verdict."""
        told = exercises.named(name)
        self.report.say_task(name, self.verdict_on(told.function), is_right)
        if name not in {task.name for task in self.one.tasks}:
            return
        try:
            trials = trials_of(told, function, self.draw)
        except AnswerError as error:
            self.report.say_problem(name, error)
            return
        with redirect_stdout(io.StringIO()):
            self.report.try_answer(name, function, trials)

    def verdict_on(self, function: str) -> str:
        """What attempt has just shown: all that was printed from the last line `merge: …`."""
        text = f"\n{self.printed.getvalue()}"
        begin = max(text.rfind(f"\n{function}{after}") for after in (": ", ", as you saved it: "))
        return GOES_ON.sub("", text[max(begin, 0) :]).strip()


def trials_of(told: exercises.Exercise | Blank, function: Callable, draw: int) -> list[Trial]:
    """The cases as attempt tries them, a blank among the reader's other functions; without their
    references. Raises AnswerError for what can't be tried."""
    if not isinstance(told, Blank):
        return without_references(told.trials(draw))
    if why := not_a_try(told, function):
        raise AnswerError(why)
    return without_references(told.trials(draw, told.craft.others(told, function)))
