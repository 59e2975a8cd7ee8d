"""The files of the assignment, as a student gets them and as they are solved."""

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from pa_tutorial.checks.calls import AnswerError
from pa_tutorial.exercises.kernel_text import excerpt, functions_in
from pa_tutorial.exercises.tasks import Task
from pa_tutorial.kernels.sources import Source, text_of

FOLDER = Path(__file__).parent
SOLUTION = FOLDER / "solution"
V1, V2, PLAIN = "v1_window.py", "v2_window.py", "window.py"
FILES = (V1, V2, PLAIN)
# Of each file of kernels: the package's file, and its functions that a window changes.
KERNELS = {
    V1: ("v1", ("fill_logits", "paged_attention_v1")),
    V2: ("v2", ("bounds_of_partition", "reduce_partitions")),
}
HEAD = '''\
"""Two functions of {kernel}.py, as they are there. This file is executed after it (README.md)."""

from numba import cuda, float32

from pa_tutorial.kernels.{kernel} import *

WINDOW = 0  # tokens that the newest query sees, itself included; 0: no window, it sees all
'''


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


def starter_texts() -> dict[str, str]:
    """File name -> text: the walk's own functions, and stubs in plain Python."""
    stubs = (FOLDER / "starter" / PLAIN).read_text(encoding="utf-8")
    return {file: starter_of(*of_kernel) for file, of_kernel in KERNELS.items()} | {PLAIN: stubs}


def starter_of(kernel: str, names: tuple[str, ...]) -> str:
    text = text_of(kernel)
    functions = [excerpt(text, functions_in(text)[name]) for name in names]
    return "\n\n".join([HEAD.format(kernel=kernel), *functions])


def solution_texts() -> dict[str, str]:
    """File name -> text."""
    return {name: (SOLUTION / name).read_text(encoding="utf-8") for name in FILES}


def solved_kernels() -> tuple[Source, Source]:
    """The files of the kernels, as the trials of v2 take them; those of v1 take the first."""
    return source_of(SOLUTION / V1), source_of(SOLUTION / V2)
