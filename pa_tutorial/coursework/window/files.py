"""The files of the assignment: what a student gets, what a solution looks like, how both load."""

import sys
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from itertools import count
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pa_tutorial
from pa_tutorial.coursework.window.texts import tasks_text
from pa_tutorial.exercises.exercise import stub_of
from pa_tutorial.text_changes import Change, changed_texts, compiled, load_versions
from pa_tutorial.walk.calls import AnswerError

PACKAGE = Path(pa_tutorial.__file__).parent
KERNEL, REDUCE, PLAIN = "paged_attention_window.py", "reduce_window.py", "window.py"
HAND_OUT = "TASKS.md"
SOLVED = "coursework/window/plain.py"
VERSIONS = {
    version.name: version.changes
    for version in load_versions(Path(__file__).with_name("changes.toml"))
}
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
    kernels = changed_texts(VERSIONS["starter"], _live)
    return {
        KERNEL: kernels["kernels/paged_attention.py"],
        REDUCE: kernels["kernels/reduce.py"],
        PLAIN: stub_of(_live(SOLVED)) + "\n",
        HAND_OUT: tasks_text(),
    }


def solution_files(changes: Iterable[Change] = ()) -> dict[str, str]:
    """File name -> text: the same files, solved; then with some changes."""
    files = starter_files() | {PLAIN: _live(SOLVED)}
    files |= changed_texts(VERSIONS["solution"], files.__getitem__)
    return files | changed_texts(changes, files.__getitem__)


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
    module = ModuleType(f"window_answer_{next(NUMBERS)}")
    module.__file__ = file
    sys.modules[module.__name__] = module  # some decorators look there
    try:
        exec(compiled(text, file), module.__dict__)
    finally:
        del sys.modules[module.__name__]
    return module


def _live(file: str) -> str:
    return (PACKAGE / file).read_text(encoding="utf-8")


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
