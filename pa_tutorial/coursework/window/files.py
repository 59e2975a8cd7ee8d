"""The files of the assignment: what a student gets, what a solution looks like, how both load."""

import linecache
import sys
from collections.abc import Callable, Mapping
from functools import cache
from itertools import count
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pa_tutorial
from pa_tutorial.coursework.window import changes
from pa_tutorial.coursework.window.texts import tasks_text
from pa_tutorial.exercises.exercise import BEGIN, END, PLACEHOLDER
from pa_tutorial.walk.calls import AnswerError

PACKAGE = Path(pa_tutorial.__file__).parent
KERNEL, REDUCE, PLAIN = "paged_attention_window.py", "reduce_window.py", "window.py"
HAND_OUT = "TASKS.md"
NUMBERS = count(1)

# task -> what is graded: (file, function) once, or more than once. Trials take the function, or a
# tuple of the functions in this order.
PLACES: dict[str, tuple[tuple[str, str], ...]] = {
    "blocks_in_window": ((PLAIN, "blocks_in_window"),),
    "v1": ((KERNEL, "paged_attention"),),
    "v2": ((KERNEL, "paged_attention"), (REDUCE, "reduce")),
    "append_in_window": ((PLAIN, "append_in_window"),),
    "shared_bytes": ((PLAIN, "shared_bytes"), (KERNEL, "paged_attention")),
}


class Kernels(NamedTuple):
    """The two kernels of v2.

    paged_attention  (geometry, loads, window) -> kernel
    reduce           (geometry, window) -> kernel
    """

    paged_attention: Callable[..., Callable]
    reduce: Callable[..., Callable]


class Launched(NamedTuple):
    """shared_bytes, and the kernel that is launched with it: (geometry, loads, window) -> kernel"""

    shared_bytes: Callable[..., int]
    paged_attention: Callable[..., Callable]


def starter_files() -> dict[str, str]:
    """File name -> text: what a student gets."""
    return {
        KERNEL: _kernel(changes.STARTER_KERNEL),
        REDUCE: _reduce(changes.STARTER_REDUCE),
        PLAIN: stub_of(_plain()),
        HAND_OUT: tasks_text(),
    }


def solution_files() -> dict[str, str]:
    """File name -> text: the same files, solved."""
    return {
        KERNEL: _kernel(changes.STARTER_KERNEL + changes.SOLUTION_KERNEL),
        REDUCE: _reduce(changes.STARTER_REDUCE + changes.SOLUTION_REDUCE),
        PLAIN: _plain(),
        HAND_OUT: tasks_text(),
    }


def write_student_files(folder: Path) -> list[Path]:
    """Write what a student gets into a folder, made if it is not there; the paths.

    Raises FileExistsError, before anything is written, if one of the files is there already.
    """
    files = {Path(folder) / name: text for name, text in starter_files().items()}
    for path in files:
        if path.exists():
            raise FileExistsError(f"folder: {path} is there already; it is not written over")
    Path(folder).mkdir(parents=True, exist_ok=True)
    for path, text in files.items():
        path.write_text(text, encoding="utf-8")
    return list(files)


def load(folder: Path) -> dict[str, Any]:
    """For each task what its trials take (see PLACES), out of a student's folder.

    A file that cannot be read or run, or lacks its function, is no error here: the tasks that
    need it get a function that says so when it is called.
    """
    paths = {name: Path(folder) / name for name in (KERNEL, REDUCE, PLAIN)}
    return _answers({name: _functions_of(_from_disk(path)) for name, path in paths.items()})


def load_texts(files: Mapping[str, str]) -> dict[str, Any]:
    """The same, of texts: file name -> text."""
    modules = {
        name: _functions_of(lambda name=name: run_text(files[name], f"<{next(NUMBERS)} {name}>"))
        for name in (KERNEL, REDUCE, PLAIN)
    }
    return _answers(modules)


@cache
def solution() -> dict[str, Any]:
    """For each task what its trials take, solved."""
    return load_texts(solution_files())


def run_text(text: str, file: str) -> ModuleType:
    """A module of a text, which nobody else can import. Raises whatever the text raises.

    file  where it stands, or <any words> if it stands nowhere
    """
    # where inspect looks for the text: the simulator reads the source of a kernel
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    module = ModuleType(f"window_answer_{next(NUMBERS)}")
    module.__file__ = file
    sys.modules[module.__name__] = module  # some decorators look there
    try:
        exec(compile(text, file, "exec"), module.__dict__)
    finally:
        del sys.modules[module.__name__]
    return module


def stub_of(text: str) -> str:
    """The text with what stands between BEGIN and END taken out."""
    lines, inside = [], False
    for line in text.splitlines():
        if line.strip() == BEGIN:
            lines.append(line.replace(BEGIN, PLACEHOLDER))
            inside = True
        elif line.strip() == END:
            inside = False
        elif not inside:
            lines.append(line)
    return "\n".join(lines) + "\n"


def _kernel(made: tuple[changes.Change, ...]) -> str:
    text = (PACKAGE / "kernels" / "paged_attention.py").read_text(encoding="utf-8")
    return changes.with_changes(text, made, KERNEL)


def _reduce(made: tuple[changes.Change, ...]) -> str:
    text = (PACKAGE / "kernels" / "reduce.py").read_text(encoding="utf-8")
    return changes.with_changes(text, made, REDUCE)


def _plain() -> str:
    return Path(__file__).with_name("plain.py").read_text(encoding="utf-8")


def _from_disk(path: Path) -> Callable[[], ModuleType]:
    return lambda: run_text(path.read_text(encoding="utf-8"), str(path.resolve()))


def _functions_of(load_module: Callable[[], ModuleType]) -> Callable[[str, str], Callable]:
    """(file name, function name) -> the function; or one that says why there is none."""
    try:
        module, why = load_module(), ""
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # SystemExit too: the file may be anybody's
        module, why = None, f"it raised {type(error).__name__}: {error}"

    def function(file: str, name: str) -> Callable:
        if module is None:
            return _refusing(f"{file} cannot be loaded: {why}")
        found = getattr(module, name, None)
        return found if callable(found) else _refusing(f"{file} has no function {name}")

    return function


def _refusing(message: str) -> Callable:
    def refuse(*args: object, **kwargs: object) -> None:
        raise AnswerError(message)

    return refuse


def _answers(modules: Mapping[str, Callable[[str, str], Callable]]) -> dict[str, Any]:
    answers: dict[str, Any] = {}
    for task, places in PLACES.items():
        functions = tuple(modules[file](file, name) for file, name in places)
        answers[task] = functions if len(functions) > 1 else functions[0]
    return answers
