"""How far a check is, and how much time is left, for one that takes seconds."""

import os
import sys
from collections.abc import Iterator, Sequence
from typing import TypeVar

from tqdm import tqdm

HIDDEN = "PA_TUTORIAL_NO_PROGRESS"  # set where notebooks are run for what they print
DELAY = 2.0  # seconds before it is shown: most checks have ended by then
WORDS = "{desc}: {n_fmt} of {total_fmt} cases done, {remaining} left"

Case = TypeVar("Case")


def with_progress(title: str, cases: Sequence[Case]) -> Iterator[Case]:
    """The cases, one after the other; a line says how many are done, and goes at the end.

    In a notebook and in a terminal; not in a file or a pipe.
    """
    in_notebook = is_notebook()
    file = sys.stdout if in_notebook else sys.stderr  # JupyterLab shows stderr as an error, in red
    is_seen = (in_notebook or file.isatty()) and HIDDEN not in os.environ
    options = {"delay": DELAY, "leave": False, "bar_format": WORDS, "disable": not is_seen}
    yield from tqdm(cases, title, file=file, **options)


def is_notebook() -> bool:
    """Whether a Jupyter kernel runs this, and not only IPython in a terminal."""
    ipython = sys.modules.get("IPython")
    return ipython is not None and hasattr(ipython.get_ipython(), "kernel")
