"""What a reader is told about a blank or an exercise: level, text, hints and wrong answers.

texts/NN_topic.toml holds those of a notebook, its blanks in their order, then its exercises:

    file = "v1"                      # of kernels/, for the blanks: it has their answers

    [qk_dot]
    level = "medium"                 # or easy, hard
    text = "What is wanted: one or two sentences above the cell."
    hints = ["", "", ""]             # Markdown, folded: an idea, how, a skeleton (or two hints)
    why = "One sentence below the answer; optional for an exercise."

    [[qk_dot.wrong]]                 # one line of the answer changed: see changed_line.py
    old = "THREAD_GROUP_SIZE // 2"   # without old, `new` is a whole function
    new = "WARP_SIZE // 2"
    why = "Markdown: what is wrong with it."
    says = "a piece of the verdict on a blank"

A blank (blank.py) also has stub, and may have file, picture, function, goal, par, required, best,
dear (in plain Python: what to ask oneself if it takes more than it must).
"""

import re
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from pa_tutorial.exercises.changed_line import with_changed_line

FOLDER = Path(__file__).with_name("texts")
FOLDS = "An idea", "How", "A skeleton"
BEGIN, END = "### BEGIN SOLUTION", "### END SOLUTION"
YOUR_CODE = "# your code"  # at the end of a line in a stub


@dataclass(frozen=True)
class WrongAnswer:
    """The answer with one line changed, and why that is wrong.

    old   a line of the answer, or a piece of one; "" if `new` is a whole function
    says  a piece of a blank's verdict
    """

    why: str
    new: str
    old: str = ""
    says: str = ""

    def made_in(self, answer: str) -> str:
        return with_changed_line(answer, self.old, self.new) if self.old else self.new


class Told:
    """A blank or an exercise, with its table.

    source  the answer, with its signature
    body    what of it the reader writes
    stub    the answer without that
    trials  the cases, of a draw
    craft   of a blank: what depends on where the answer runs
    """

    name: str
    function: str
    notebook: str
    source: str
    body: str
    stub: str
    trials: Callable[..., list[Any]]
    craft: ModuleType

    @property
    def table(self) -> dict[str, Any]:
        return tables_of(self.notebook)[self.name]

    @property
    def text(self) -> str:
        return self.table["text"].strip()

    @property
    def why(self) -> str:
        """A sentence about the answer; "" if there is none."""
        return self.table.get("why", "").strip()

    @property
    def par(self) -> tuple[str, ...]:
        """What is counted beside "right": see par.py."""
        return tuple(self.table.get("par", ()))

    @property
    def required(self) -> bool:
        """Whether an answer is right only with par."""
        return self.table.get("required", False)

    @property
    def best(self) -> dict[str, int]:
        """Where less is known than our answer takes."""
        return self.table.get("best", {})

    @property
    def wrong(self) -> tuple[WrongAnswer, ...]:
        """Answers that must not pass: mistakes that people make."""
        return tuple(WrongAnswer(**wrong) for wrong in self.table["wrong"])

    @property
    def num_lines(self) -> int:
        """Lines of code that the reader writes."""
        given = [line for line in code_lines(self.stub) if YOUR_CODE not in line]
        return len(code_lines(self.source)) - len(given)

    @property
    def heading(self) -> str:
        lines = "1 line" if self.num_lines == 1 else f"{self.num_lines} lines"
        text = re.sub(r"(?<!\n)\n(?!\n)", " ", self.text)
        return f"**Your turn** ({self.table['level']}, {lines}). {text}"

    @property
    def fold(self) -> str:
        """Hints and the answer, each folded."""
        return "\n".join(folded(summary, markdown) for summary, markdown in self.folds())

    def folds(self) -> Iterator[tuple[str, str]]:
        """(summary, Markdown) of each fold."""
        hints = self.table["hints"]
        numbered = [f"Hint {number}" for number in range(1, len(hints) + 1)]
        yield from zip(FOLDS if len(hints) == len(FOLDS) else numbered, hints, strict=True)
        yield "The answer", f"{in_fence(self.body)}\n\n{self.why}"

    @property
    def open_answer(self) -> str:
        lines = self.source.splitlines()
        answer = "\n".join(line for line in lines if line.strip() not in (BEGIN, END))
        return f"**`{self.function}`**\n\n{in_fence(answer)}\n\n{self.why}"


def folded(summary: str, markdown: str) -> str:
    """Folds in JupyterLab, on GitHub and on the site. The empty lines make it Markdown inside."""
    return f"<details><summary>{summary}</summary>\n\n{markdown.strip()}\n\n</details>"


def in_fence(code: str) -> str:
    return f"```python\n{code.rstrip()}\n```"


def code_lines(source: str) -> list[str]:
    """Its lines without empty ones and those that are only a comment."""
    return [s for line in source.splitlines() if (s := line.strip()) and not s.startswith("#")]


@cache
def tables_of(notebook: str) -> dict[str, Any]:
    """The tables of a notebook by name, and "file"; none if it has no blanks and exercises."""
    path = FOLDER / f"{notebook}.toml"
    return tomllib.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def notebook_names() -> tuple[str, ...]:
    """The notebooks that have exercises or blanks, in reading order."""
    return tuple(sorted(path.stem for path in FOLDER.glob("*.toml")))
