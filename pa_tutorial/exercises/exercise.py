"""What an exercise is: a solution with marks in it, from which the stub is made.

Its text, hints and wrong answers are in texts/NN_topic.toml: see texts.py.
"""

import inspect
import linecache
import textwrap
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import count
from types import CodeType
from typing import Any

from pa_tutorial.checks.running import Trial
from pa_tutorial.exercises.texts import BEGIN, END, YOUR_CODE, Told

ANSWERS = count(1)
PLACEHOLDER = f"return None  {YOUR_CODE} in place of this line"


@dataclass(frozen=True)
class Exercise(Told):
    """One exercise. Its stub is made of the solution.

    solution   a function; its lines between BEGIN and END are what the reader writes
    cases      makes the trials; each runs the function it is given.
               Its argument is the draw: 0 are the cases of the notebook; any other number are
               the same cases, by name and by what they isolate, with other numbers in them.
               They are what a grade is given on, so that nobody can know the answers.
    is_warm_up  one to three lines, in the flow of the notebook: without a heading
    drawn      makes the launch (a Task) that is drawn above the verdict; None: no picture
    """

    solution: Callable[..., Any]
    cases: Callable[[int], list[Trial]]
    is_warm_up: bool = False
    drawn: Callable[[], Any] | None = None

    @property
    def name(self) -> str:
        return self.solution.__name__

    def trials(self, draw: int = 0) -> list[Trial]:
        """The cases of a draw; each runs the solution where it is given None."""
        ours, made = self.solution, self.cases(draw)
        # Each knows how it runs, but not its references: a grader leaves these out.
        return [replace(t, run=lambda f, run=t.run: run(ours if f is None else f)) for t in made]

    @property
    def notebook(self) -> str:
        """The file that holds it, without its ending: named like its notebook."""
        return inspect.getmodule(self.solution).__name__.rpartition(".")[2]

    @property
    def function(self) -> str:
        """The name of the function that the reader writes: the exercise's own."""
        return self.name

    @property
    def around(self) -> str:
        """The text of its module: what the solution may use."""
        return inspect.getsource(inspect.getmodule(self.solution))

    @property
    def source(self) -> str:
        function = getattr(self.solution, "fn", self.solution)  # under a @triton.jit
        return textwrap.dedent(inspect.getsource(function))

    @property
    def stub(self) -> str:
        return stub_of(self.source)

    @property
    def body(self) -> str:
        """The lines between the marks."""
        lines = [line.strip() for line in self.source.splitlines()]
        return "\n".join(self.source.splitlines()[lines.index(BEGIN) + 1 : lines.index(END)])

    def answer(self, source: str) -> Callable[..., Any]:
        """The function that a source text defines, with the names of the solution's module."""
        namespace = dict(inspect.getmodule(self.solution).__dict__)
        exec(compiled(source, f"<answer {next(ANSWERS)} to {self.name}>"), namespace)
        return namespace[self.name]


def stub_of(text: str) -> str:
    """A solution with the marked lines taken out."""
    lines, inside = [], False
    for line in text.splitlines():
        if line.strip() == BEGIN:
            lines.append(line.replace(BEGIN, PLACEHOLDER))
            inside = True
        elif line.strip() == END:
            inside = False
        elif not inside:
            lines.append(line)
    return "\n".join(lines)


def compiled(text: str, name: str) -> CodeType:
    """The code of a text that is in no file, but which inspect finds: the simulator reads it.

    `name` is a name of its own, such as "<answer 1>", as IPython gives one to a cell. linecache
    keeps an entry without a time, and doesn't look for a file.
    """
    linecache.cache[name] = len(text), None, text.splitlines(keepends=True), name
    return compile(text, name, "exec")
