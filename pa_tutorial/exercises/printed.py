"""What a reader's function prints while it is tried: 128 threads print 128 lines, in each case."""

import io
import sys
from collections.abc import Callable, Iterable
from contextlib import redirect_stdout
from dataclasses import replace
from typing import Any

from pa_tutorial.checks.running import Trial

MOST_LINES = 5


class FewLines(io.TextIOBase):
    """Standard output that shows the first lines only, and counts the others."""

    def __init__(self) -> None:
        self.to, self.count = sys.stdout, 0

    def write(self, text: str) -> int:
        for line in text.splitlines(keepends=True):
            if self.count < MOST_LINES:
                self.to.write(line)
            self.count += line.endswith("\n")
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
