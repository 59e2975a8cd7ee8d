"""What an entry of the index is: places are named by text that stands there, never by number."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Line:
    """The one line of a file of ours in which this text stands.

    path  from the root of the repository
    """

    path: str
    text: str


@dataclass(frozen=True)
class Cell:
    """The one cell of a notebook in whose source this text stands.

    notebook  its file name without .ipynb
    """

    notebook: str
    text: str


@dataclass(frozen=True)
class Symbol:
    """A name in vLLM's source (or another project's), or a few that stand together there.

    name   in Markdown
    what   what it is, in a few words
    lines  where it is in our code
    cells  where a notebook shows it
    """

    name: str
    what: str
    lines: tuple[Line, ...]
    cells: tuple[Cell, ...]


@dataclass(frozen=True)
class VllmFile:
    """A file of vLLM, or of another project.

    version  which one we mean: "commit …", or what else is known of it
    symbols  in the order in which they stand there
    project  where it is not vLLM
    """

    path: str
    version: str
    symbols: tuple[Symbol, ...]
    project: str = ""


@dataclass(frozen=True)
class Question:
    """What people ask about this kernel.

    answer  one sentence, in Markdown
    cells   where it can be seen: at least one code cell with an output
    """

    text: str
    answer: str
    cells: tuple[Cell, ...]


@dataclass(frozen=True)
class Source:
    """A text that the walk grew out of."""

    title: str
    author: str


@dataclass(frozen=True)
class Said:
    """Where a source says something.

    where  in it: a section, or what the passage is about
    """

    source: Source
    where: str


@dataclass(frozen=True)
class Erratum:
    """Something that a source says and that is not so.

    claim     what the sources say, in our words
    said      which ones, and where in them
    truth     what is so instead
    cells     where it can be seen: at least one code cell with an output, unless `not_run` is given
    not_run   why no cell shows it
    """

    claim: str
    said: tuple[Said, ...]
    truth: str
    cells: tuple[Cell, ...]
    not_run: str = ""


def lines_of(path: str) -> Callable[..., tuple[Line, ...]]:
    """A short way to write lines of one file: lines_of(path)("text", "another text")."""
    return lambda *texts: tuple(Line(path, text) for text in texts)


def cells_of(notebook: str) -> Callable[..., tuple[Cell, ...]]:
    """The same for the cells of one notebook."""
    return lambda *texts: tuple(Cell(notebook, text) for text in texts)
