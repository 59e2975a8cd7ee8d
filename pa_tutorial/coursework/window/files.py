"""The files of the assignment, as a student gets them and as they are solved."""

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from pa_tutorial.checks.calls import AnswerError
from pa_tutorial.coursework.tasks import Task
from pa_tutorial.kernels.sources import Source

FOLDER = Path(__file__).parent
STARTER, SOLUTION = FOLDER / "starter", FOLDER / "solution"
V1, V2, PLAIN = "v1_window.py", "v2_window.py", "window.py"
FILES = (V1, V2, PLAIN)


@dataclass(frozen=True)
class KernelTask(Task):
    """A task whose trials take the student's files whole: they are executed with the kernel's."""

    def answer(self) -> tuple[Source, ...]:
        """The files, found on sys.path. Raises AnswerError if one is missing."""
        return tuple(source_of(path_of(file)) for file in dict.fromkeys(f for f, _ in self.places))


def path_of(file: str) -> Path:
    found = find_spec(file.removesuffix(".py"))
    if found is None:
        raise AnswerError(f"there is no {file}")
    return Path(found.origin)


def source_of(path: Path) -> Source:
    return Source(path.read_text(encoding="utf-8-sig"), str(path), 1)


def texts_of(folder: Path) -> dict[str, str]:
    """File name -> text."""
    return {name: (folder / name).read_text(encoding="utf-8") for name in FILES}


def kernels_of(folder: Path) -> tuple[Source, Source]:
    """The files of the kernels, as the trials of v2 take them; those of v1 take the first."""
    return source_of(folder / V1), source_of(folder / V2)
