"""What a reader's function prints while it is tried: 128 threads print 128 lines, in each case."""

import io
import sys
from collections.abc import Callable, Iterable
from contextlib import redirect_stdout
from dataclasses import replace
from typing import Any

from pa_tutorial.checks.running import Trial

MOST_LINES = 5
MOST_LETTERS = 300  # of one line


class FewLines(io.TextIOBase):
    """Standard output that shows the first lines only, none of them long, and counts the others."""

    def __init__(self) -> None:
        self.to, self.count, self.room = sys.stdout, 0, MOST_LETTERS

    def write(self, text: str) -> int:
        for line in text.splitlines(keepends=True):
            end = "\n" * line.endswith("\n")
            if self.count < MOST_LINES:
                self.to.write(line.removesuffix("\n")[: self.room] + end)
            self.room = MOST_LETTERS if end else max(0, self.room - len(line))
            self.count += len(end)
        return len(text)

    def of(self, trials: Iterable[Trial]) -> list[Trial]:
        """The trials, but what a function prints in them comes here."""
        return [replace(trial, run=self.around(trial.run)) for trial in trials]

    def around(self, run: Callable[..., Any]) -> Callable[..., Any]:
        def ran(*given: object) -> Any:
            with redirect_stdout(self):
                return run(*given)

        return ran

    def say_how_many_more(self) -> None:
        if self.count > MOST_LINES:
            print(f"… and {self.count - MOST_LINES:,} lines more that it printed", file=self.to)
