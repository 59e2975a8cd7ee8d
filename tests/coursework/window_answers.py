"""Wrong answers to the assignment of a sliding window: window_wrong.toml."""

import tomllib
from dataclasses import dataclass
from pathlib import Path

from pa_tutorial.exercises.changed_line import with_changed_line
from pa_tutorial.exercises.window.files import solution_texts


@dataclass(frozen=True)
class WrongAnswer:
    """The solution with one line changed, in one file.

    fails     the case that it must not pass
    old, new  and function: see with_changed_line
    added     a function at the end of the file
    """

    task: str
    why: str
    fails: str
    file: str
    old: str
    new: str
    function: str = ""
    added: str = ""

    def texts(self) -> dict[str, str]:
        """File name -> text, of all files. Raises ValueError if the line isn't there."""
        texts = solution_texts()
        changed = with_changed_line(texts[self.file], self.old, self.new, self.function)
        return texts | {self.file: changed + self.added}


def load_wrong_answers() -> list[WrongAnswer]:
    text = Path(__file__).with_name("window_wrong.toml").read_text(encoding="utf-8")
    tasks = tomllib.loads(text).items()
    return [WrongAnswer(task, **table) for task, tables in tasks for table in tables]
