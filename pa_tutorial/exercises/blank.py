"""A blank: a function of a kernel that the reader writes, with its plan, hints and answer.

blanks/NN_topic.toml holds those of a notebook, in its order:

    file = "v1"                      # of kernels/: it has the answers; a blank may name another

    [qk_dot]
    level = "medium"                 # or easy, hard
    text = "What is wanted: one or two sentences above the cell."
    stub = "The cell: signature, plan in comments, `...  # your code` where the reader writes."
    hints = ["first", "second"]      # Markdown, folded
    why = "One sentence below the answer."
    picture = "read k_cache"         # optional: whose accesses are drawn, yours beside ours
    function = "qk_dot"              # optional: its name in the kernel, if another blank has it

    [[qk_dot.wrong]]                 # what people write first: changes of the answer
    old = "THREAD_GROUP_SIZE // 2"   # as in text_changes.py
    new = "WARP_SIZE // 2"
    why = "Markdown: what is wrong with it."
    says = "a piece of the verdict"

The answer is the function in the kernel's file, so it has one source.
"""

import ast
import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from pa_tutorial.checks.running import Trial
from pa_tutorial.text_changes import Change

FOLDER = Path(__file__).with_name("blanks")
YOUR_CODE = "...  # your code"


@dataclass(frozen=True)
class WrongAnswer:
    """The answer with one change, and why that is wrong. says: a piece of its verdict."""

    why: str
    says: str
    old: str
    new: str

    def made_in(self, answer: str) -> str:
        return Change(file="", old=self.old, new=self.new).made_in(answer)


@dataclass(frozen=True)
class Blank:
    """What a table of blanks/NN_topic.toml says; notebook is the file's name, without its ending.

    It has what an Exercise has: name, notebook, text, stub, source (the answer) and trials.

    function  its name in the kernel; the blank's own, unless two kernels have it
    """

    name: str
    notebook: str
    file: str
    level: str
    text: str
    stub: str
    hints: tuple[str, ...]
    why: str
    wrong: tuple[WrongAnswer, ...]
    picture: str = ""
    function: str = ""

    @property
    def source(self) -> str:
        """The answer: the function as the kernel's file has it."""
        from pa_tutorial.exercises.kernel_file import KernelFile, pieces  # loads the simulator

        return pieces(KernelFile(self.file).text())["function", self.function].strip() + "\n"

    @property
    def around(self) -> str:
        """The imports and constants of its kernel: with these it can be defined."""
        from pa_tutorial.exercises.kernel_file import KernelFile, joined, pieces

        parts = pieces(KernelFile(self.file).text())
        return joined({key: text for key, text in parts.items() if key[0] != "function"})

    @property
    def needs(self) -> str:
        """What a submission of it needs: see Task."""
        return self.around

    @property
    def num_lines(self) -> int:
        """Lines of code that the reader writes."""
        given = len(code_lines(self.stub)) - self.stub.count(YOUR_CODE)
        return len(code_lines(self.source)) - given

    @property
    def body(self) -> str:
        """The answer without its decorator and signature."""
        lines = self.source.splitlines()
        first = ast.parse(self.source).body[0].body[0].lineno - 1
        while lines[first - 1].lstrip().startswith("#"):
            first -= 1
        return "\n".join(lines[first:])

    def trials(self, draw: int = 0) -> list[Trial]:
        """The cases; draw 0 has those of the notebook, any other draw has other numbers."""
        from pa_tutorial.exercises.blank_cases import TRIALS  # loads the simulator

        return TRIALS[self.file](self.function, draw)

    @property
    def cell(self) -> str:
        return f'{self.stub.strip()}\n\n\n{self.function} = attempt("{self.name}", {self.function})'

    @property
    def heading(self) -> str:
        lines = "1 line" if self.num_lines == 1 else f"{self.num_lines} lines"
        text = re.sub(r"(?<!\n)\n(?!\n)", " ", self.text.strip())
        return f"**Your turn** ({self.level}, {lines}). {text}"

    @property
    def fold(self) -> str:
        """Hints, what people write first, and the answer, each folded."""
        return "\n".join(self._folds())

    def _folds(self) -> Iterator[str]:
        for number, hint in enumerate(self.hints, start=1):
            yield folded(f"Hint {number}", hint)
        first = self.wrong[0]
        theirs = first.made_in(self.source).splitlines()
        changed = "\n".join(line for line in theirs if line not in self.source.splitlines())
        shown = f"{in_fence(changed)}\n\n" if changed else ""  # a line may only be missing
        yield folded("What people write first", shown + first.why.strip())
        yield folded("The answer", f"{in_fence(self.body)}\n\n{self.why.strip()}")


def folded(summary: str, markdown: str) -> str:
    """Folds in JupyterLab, on GitHub and on the site. The empty lines make it Markdown inside."""
    return f"<details><summary>{summary}</summary>\n\n{markdown.strip()}\n\n</details>"


def in_fence(code: str) -> str:
    return f"```python\n{code.rstrip()}\n```"


def code_lines(source: str) -> list[str]:
    """Its lines without empty ones and those that are only a comment."""
    return [s for line in source.splitlines() if (s := line.strip()) and not s.startswith("#")]


@cache
def blanks_of(notebook: str) -> tuple[Blank, ...]:
    """Those of a notebook, in its order; none if it has no file."""
    path = FOLDER / f"{notebook}.toml"
    return tuple(_in(path)) if path.exists() else ()


def _in(path: Path) -> Iterator[Blank]:
    tables = tomllib.loads(path.read_text(encoding="utf-8"))
    file = tables.pop("file")
    for name, table in tables.items():
        table["wrong"] = tuple(WrongAnswer(**wrong) for wrong in table["wrong"])
        table["hints"] = tuple(table["hints"])
        yield Blank(name=name, notebook=path.stem, **{"file": file, "function": name} | table)


@cache
def all_blanks() -> dict[str, Blank]:
    """name -> blank, in the order of the notebooks."""
    files = sorted(path.stem for path in FOLDER.glob("*.toml"))
    return {blank.name: blank for notebook in files for blank in blanks_of(notebook)}


class Answers:
    """All answers of a notebook, open, as a notebook shows them."""

    def __init__(self, blanks: tuple[Blank, ...]) -> None:
        self.blanks = blanks

    def _repr_markdown_(self) -> str:
        return "\n\n".join(
            f"**`{blank.function}`**\n\n{in_fence(blank.source)}\n\n{blank.why.strip()}"
            for blank in self.blanks
        )


def answers(number: int) -> Answers:
    """The answers to the blanks of a notebook, all at once: `answers(10)`.

    Raises ValueError for a notebook that has no blanks.
    """
    names = [path.stem for path in sorted(FOLDER.glob("*.toml"))]
    found = [name for name in names if name.startswith(f"{number:02}_")]
    if not found:
        known = ", ".join(str(int(name[:2])) for name in names)
        raise ValueError(f"number is {number}; it must be one of {known}")
    return Answers(blanks_of(found[0]))
