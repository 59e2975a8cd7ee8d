"""A blank: a function of a kernel that the reader writes, with its plan, hints and answer.

Its table of texts/NN_topic.toml (texts.py says what every table has) also has:

    stub = "The cell: signature, plan in comments, `...  # your code` where the reader writes."
    file = "sizes"                   # where the answer is, if not in that of the notebook: sizes.py
    picture = "read k_cache"         # optional: whose accesses are drawn, yours beside ours
    function = "qk_dot"              # optional: its name in the kernel, if another blank has it
    goal = ["qk", "out"]             # optional: what of the worked example an unwritten blank shows
    par = ["k_cache transactions"]   # optional: what is counted beside "right"; see par.py
    required = true                  # optional: right only with par
    best = {"k_cache transactions" = 4}  # optional: where less is known than our answer takes

The answer is the function in kernels/<file>.py, so it has one source. The first wrong answer is
the easy mistake that is told below it.
"""

import ast
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from types import MappingProxyType, ModuleType

from pa_tutorial.checks.running import Trial
from pa_tutorial.exercises.kernel_text import excerpt, functions_in, head_of, without
from pa_tutorial.exercises.reader_files import PLAIN, files_with, text_of
from pa_tutorial.exercises.texts import Told, in_fence, notebook_names, tables_of


@dataclass(frozen=True)
class Blank(Told):
    """A blank of a notebook, whose name is given without its ending."""

    name: str
    notebook: str

    @property
    def file(self) -> str:
        """naive, v1, v1_vector or v2, of kernels/; or sizes: sizes.py, in plain Python."""
        return self.table.get("file", tables_of(self.notebook)["file"])

    @property
    def function(self) -> str:
        """Its name in the kernel; the blank's own, unless two kernels have it."""
        return self.table.get("function", self.name)

    @property
    def picture(self) -> str:
        return self.table.get("picture", "")

    @property
    def goal(self) -> tuple[str, ...]:
        return tuple(self.table.get("goal", ()))

    @property
    def stub(self) -> str:
        return self.table["stub"]

    @property
    def source(self) -> str:
        """The answer: the function as its file has it."""
        text = text_of(self.file)
        return excerpt(text, functions_in(text)[self.function])

    @property
    def around(self) -> str:
        """With this it can be defined: the imports and constants of its kernel, and in pages.py all
        but the answers to blanks of its notebook."""
        if self.file == "pages":
            answers = {blank.function for blank in blanks_of(self.notebook)}
            return without(text_of(self.file), answers)
        return "\n".join(head_of(text_of(file)) for file in files_with(self.file))

    @property
    def body(self) -> str:
        """The answer without its decorator and signature."""
        lines = self.source.splitlines()
        first = ast.parse(self.source).body[0].body[0].lineno - 1
        while lines[first - 1].lstrip().startswith("#"):
            first -= 1
        return "\n".join(lines[first:])

    @property
    def craft(self) -> ModuleType:
        """What depends on where the answer runs: of_plain, or of_kernels, which loads the
        simulator."""
        return import_module(f"{__package__}.of_{'plain' if self.file in PLAIN else 'kernels'}")

    def trials(
        self, draw: int = 0, beside: Mapping[str, tuple[Callable, ...]] = MappingProxyType({})
    ) -> list[Trial]:
        """The cases; draw 0 has those of the notebook, any other draw has other numbers.

        beside  a reader's other functions, by file: these take part, and ours for the rest
        """
        from pa_tutorial.exercises.par import required_trials

        trials = self.craft.trials(self, draw, beside)
        return [*trials, *required_trials(self, trials)]

    @property
    def cell(self) -> str:
        return f'{self.stub.strip()}\n\n\n{self.function} = attempt("{self.name}", {self.function})'

    def folds(self) -> Iterator[tuple[str, str]]:
        """An idea, how, a skeleton, and the answer with an easy mistake."""
        *hints, (_, answer) = super().folds()
        yield from hints
        yield "The answer, and an easy mistake", f"{answer}\n\n**An easy mistake.** {self.mistake}"

    @property
    def mistake(self) -> str:
        """The first wrong answer: its changed lines, and why it is wrong."""
        first = self.wrong[0]
        theirs = first.made_in(self.source).splitlines()
        lines = [line for line in theirs if line not in self.source.splitlines()]
        changed = "\n".join(line.partition("  #")[0] for line in lines)
        missing = changed.strip() in ("", "pass")  # a line of the answer
        return first.why if missing else f"{first.why}\n\n{in_fence(changed)}"


@cache
def blanks_of(notebook: str) -> tuple[Blank, ...]:
    """Those of a notebook, in its order; none if it has none."""
    tables = tables_of(notebook).items()
    return tuple(Blank(name, notebook) for name, table in tables if "stub" in table)


@cache
def all_blanks() -> dict[str, Blank]:
    """name -> blank, in the order of the notebooks."""
    return {blank.name: blank for name in notebook_names() for blank in blanks_of(name)}
