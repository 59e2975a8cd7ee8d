"""my_kernel/: the kernels with what a reader has written, from notebook to notebook.

    mine = v1_backend.with_functions(**saved("v1"))   # theirs, where saved; ours for the rest
    save(mine)                                        # at the end of a notebook

It has naive.py, v1.py, v1_vector.py and v2.py, in the form of ours (pa_tutorial/kernels). YOURS in
each names the functions that are the reader's; all others are ours, so a check of a file never
certifies ours as theirs.
"""

import ast
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Set
from importlib.util import cache_from_source
from pathlib import Path

from pa_tutorial.exercises.blank import all_blanks
from pa_tutorial.exercises.kernel_text import (
    excerpt,
    first_line,
    functions_in,
    lines_of,
    pieces_of,
    replaced,
    with_constants,
    with_functions,
    without_kernel_imports,
)
from pa_tutorial.exercises.ours import BACKENDS, SET, WRITTEN, is_ours
from pa_tutorial.kernels import template
from pa_tutorial.kernels.cuda_backends import CudaBackend
from pa_tutorial.kernels.template import (
    FILES,
    KernelFileError,
    Source,
    files_of,
    source_of,
    text_of,
)

PLACE = "PA_TUTORIAL_MY_KERNEL"  # an environment variable: another folder than my_kernel
KERNELS = {"cuda_naive": "naive", "cuda_v1": "v1", "cuda_v1_vector": "v1_vector", "cuda_v2": "v2"}
EMPTY = ("", "# Mine; all other functions came with the tutorial.", "YOURS = ()")
OLD = (
    "{} is a file of version 1.0. Now my_kernel is a folder, and most functions take thread_idx: "
    "copy yours into the cells of the notebooks, and save them from there."
)


class MyKernelError(KernelFileError):
    """A reader's files can't be used; the message is one line that says why."""


def folder_of() -> Path:
    """Beside the notebooks, where JupyterLab runs them, unless PA_TUTORIAL_MY_KERNEL says where."""
    return Path(os.environ.get(PLACE, "my_kernel"))


def save(mine: CudaBackend) -> None:
    """Add a reader's functions to the files in my_kernel.

    If something of the reader's would be lost, what the file was before stays beside it, as
    v1_1.py. A file of whose functions none is theirs isn't written.
    """
    folder = folder_of()
    if folder.is_file():
        print(f"{OLD.format(folder)} Nothing is saved.")
        return
    by_file = {file: readers(functions) for file, functions in mine.mine}
    if not any(by_file.values()):
        print(f"None of these functions is yours yet, so {folder.name} isn't written.")
    for file, functions in by_file.items():
        if functions:
            save_file(folder / f"{file}.py", functions)


def save_file(path: Path, functions: Mapping[str, str]) -> None:
    """Write a file with these functions, and those of the reader's that it has already."""
    empty = empty_file(path.stem)
    before = text_in(path) if path.exists() else empty
    try:
        kept = {name: source.text for name, source in sources_in(before, path).items()}
    except MyKernelError:
        kept = None  # damaged
    base = empty if kept is None or lacks(before, path) else before
    yours = {**(kept or {}), **functions}
    text = with_yours(with_functions(base, yours), yours)
    if kept is None or loses(before, text, empty):
        print(f"The previous {spoken(path)} is now {keep_beside(path, before)}.")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    print(f"{spoken(path)} is written. {whose(path.stem, yours)}")


def saved(kernel: str) -> dict[str, tuple[Source, ...]]:
    """The reader's functions for a kernel, by file; prints whose functions it takes.

    kernel  "naive", "v1", "v1_vector" or "v2"

    Nothing is raised. A file that can't be used is named, and our functions take the place of its.
    """
    folder, found = folder_of(), {}
    if old := old_file(folder):
        print(f"{OLD.format(old)} All functions are ours.")
        return {}
    paths = [folder / f"{file}.py" for file in files_of(kernel)]
    if not any(path.exists() for path in paths):
        print(f"{folder.name} has no {paths[-1].name} yet, so all functions are ours.")
    known = {*vars(template.made(kernel))}
    for path in filter(Path.exists, paths):
        try:
            sources = usable(sources_in(text_in(path), path), path, known)
        except MyKernelError as error:
            print(f"{error} All its functions are ours.")
            continue
        print(f"{spoken(path)}: {whose(path.stem, sources, kernel)}")
        known |= sources.keys()  # the next file may call them
        found[path.stem] = tuple(sources.values())
    return {file: functions for file, functions in found.items() if functions}


def usable(sources: Mapping[str, Source], path: Path, known: Set[str]) -> Mapping[str, Source]:
    """Those that can take the place of ours; prints why one can't. Without it, another one that
    calls it may not fit, either."""
    for name, source in sources.items():
        try:
            tree = template.parsed(source)
            template.require_same_arguments(tree, template.tree_of(path.stem), path.stem)
            template.require_known_names(tree, known | sources.keys())
        except KernelFileError as error:
            print(f"{spoken(path)}: {error}. It is replaced with ours.")
            others = {other: sources[other] for other in sources if other != name}
            return usable(others, path, known)
    return sources


def load(folder: str | Path, kernel: str) -> CudaBackend:
    """The files in a folder as a backend for check: those there are take the place of ours.

    Prints whose functions they have. Raises MyKernelError or KernelFileError, with one line, if
    there is no file of the kernel, or one is damaged or lacks something.
    """
    folder = Path(folder)
    if folder.stem in FILES and folder.is_file():
        raise MyKernelError(f"{folder} is one file; all of {folder.parent} make the kernel.")
    if old := old_file(folder):
        raise MyKernelError(OLD.format(old))
    paths = [path for file in files_of(kernel) if (path := folder / f"{file}.py").exists()]
    if not paths:
        names = " or ".join(f"{file}.py" for file in files_of(kernel))
        raise MyKernelError(f"{folder} has no {names}.")
    whole = {}
    for path in paths:
        text = text_in(path)
        yours = sources_in(text, path)
        if missing := lacks(text, path):
            raise MyKernelError(f"{path} isn't complete: it lacks {', '.join(missing)}.")
        print(f"{path}: {whose(path.stem, yours, kernel)}")
        whole[path.stem] = (Source(text, str(path), 1),)
    backend = BACKENDS[kernel].with_functions(**whole)
    try:
        backend.namespace()
    except KernelFileError:
        raise
    except Exception as error:  # a reader's file may raise anything
        words = f"{type(error).__name__}: {error}".splitlines()[0]
        raise MyKernelError(f"{folder} can't be executed: {words}") from None
    return backend


def lacks(text: str, path: Path) -> list[str]:
    """The functions, and the constants that a launch sets, that our file has and a text hasn't."""
    ours, theirs = template.tree_of(path.stem), ast.parse(text)
    found, missing = template.functions_of(theirs), SET & template.constants(ours)
    missing -= template.constants(theirs)
    for name, arguments in template.functions_of(ours).items():
        if name not in found or len(found[name]) != len(arguments):
            missing.add(f"{name}({', '.join(arguments)})")
    return sorted(missing)


def write_kernel(path: str | Path, backend: CudaBackend, **sizes: object) -> None:
    """Write a kernel as one file, so that `from kernel_v1 import *` gives what stands in it now.

    sizes  other values for its constants

    Raises KernelFileError as backend.namespace does, MyKernelError for a backend from `load`.
    """
    backend.namespace(**sizes)
    sources = [source_of(one).text for _, functions in backend.mine for one in functions]
    if any(len(functions_in(text)) != 1 for text in sources):
        raise MyKernelError(f"{path} isn't written: the backend has whole files, as `load` gives.")
    path, theirs, text = Path(path), dict(backend.mine), ""
    yours: set[str] = set()
    for file in files_of(backend.kernel):
        functions = last_of_each_name(theirs.get(file, ()))
        texts = {name: source_of(function).text for name, function in functions.items()}
        text += with_functions(without_kernel_imports(text_of(file)), texts) + "\n\n"
        yours = yours - functions_in(text_of(file)).keys() | readers(functions.values()).keys()
    path.write_text(with_constants(text, sizes).rstrip() + "\n", encoding="utf-8")
    WRITTEN[path.resolve()] = yours
    # Python keeps a module for as long as it runs, and compares only whole seconds of a file.
    sys.modules.pop(path.stem, None)
    Path(cache_from_source(str(path))).unlink(missing_ok=True)


# Whose functions they are -------------------------------------------------------------------------


def last_of_each_name(functions: Iterable[Callable | Source]) -> dict[str, Callable | Source]:
    """Functions by name. A whole file that was loaded is none."""
    names = [(list(functions_in(source_of(one).text)), one) for one in functions]
    return {found[0]: one for found, one in names if len(found) == 1}


def readers(functions: Iterable[Callable | Source]) -> dict[str, str]:
    """The texts of those that aren't ours, by name."""
    last = last_of_each_name(functions).items()
    return {name: source_of(one).text for name, one in last if not is_ours(one)}


def whose(file: str, yours: Iterable[str], kernel: str = "") -> str:
    """Which functions of a file that a reader can write are theirs, and which ours; for a kernel
    without those that a later one of its files defines again."""
    blanks = {blank.function for blank in all_blanks().values() if blank.file == file}
    again = {name for one in later_files(file, kernel) for name in functions_in(text_of(one))}
    both = {"Yours": sorted({*yours} - again), "Ours": sorted(blanks - {*yours} - again)}
    return " ".join(f"{who}: {', '.join(names)}." for who, names in both.items() if names)


def later_files(file: str, kernel: str) -> tuple[str, ...]:
    """The files of a kernel that are executed after one of them."""
    files = FILES.get(kernel, (file,))
    return files[files.index(file) + 1 :]


# Files --------------------------------------------------------------------------------------------


def old_file(folder: Path) -> Path | None:
    """What version 1.0 saved, in the place of the folder or beside it."""
    places = folder, folder.with_suffix(".py")
    return next((path for path in places if path.is_file() and not folder.is_dir()), None)


def text_in(path: Path) -> str:
    """Bytes that aren't UTF-8 are kept as they are; sources_in refuses them. Raises MyKernelError
    for what can't be read, such as a folder."""
    try:
        return path.read_text(encoding="utf-8-sig", errors="surrogateescape")
    except OSError as error:
        raise MyKernelError(f"{spoken(path)} can't be read: {error.strerror}.") from None


def sources_in(text: str, path: Path) -> dict[str, Source]:
    """The functions of a file that are the reader's, by name.

    Raises MyKernelError if it isn't a saved file, or not Python.
    """
    try:
        text.encode()
        nodes, yours = functions_in(text), names_of_reader(text)
    except UnicodeEncodeError:
        raise MyKernelError(f"{spoken(path)} is damaged: it isn't UTF-8.") from None
    except (SyntaxError, ValueError) as error:
        raise MyKernelError(f"{spoken(path)} is damaged: {error}.") from None
    if lost := sorted(yours - nodes.keys()):
        names = ", ".join(lost)
        raise MyKernelError(f"{spoken(path)} is damaged: YOURS names {names}, which it lacks.")
    theirs = [nodes[name] for name in sorted(yours)]
    return {n.name: Source(excerpt(text, n), str(path), first_line(n)) for n in theirs}


def names_of_reader(text: str) -> set[str]:
    """The names in YOURS. Raises ValueError if it isn't there or is no tuple of names."""
    values = [node.value for node in ast.parse(text).body if is_yours(node)]
    if not values:
        raise ValueError("it doesn't say whose functions it has, because YOURS is missing")
    names = ast.literal_eval(values[0])
    if not isinstance(names, tuple) or not all(isinstance(name, str) for name in names):
        raise ValueError(f"YOURS is {names!r}; it must be a tuple of names")
    return set(names)


def is_yours(node: ast.stmt) -> bool:
    return template.is_constant(node) and node.targets[0].id == "YOURS"


def empty_file(file: str) -> str:
    """One of our files with YOURS below its docstring."""
    text = text_of(file)
    end = ast.parse(text).body[0].end_lineno
    lines = lines_of(text)
    return "\n".join([*lines[:end], *EMPTY, *lines[end:]]) + "\n"


def with_yours(text: str, names: Iterable[str]) -> str:
    """The text of a saved file with other names in YOURS."""
    lines = "".join(f'    "{name}",\n' for name in sorted(names))
    return replaced(text, lambda node: f"YOURS = (\n{lines})" if is_yours(node) else None)


def loses(before: str, text: str, ours: str) -> bool:
    """Whether a text has anything that neither the new one nor ours has."""
    pieces = [piece for node, piece in pieces_of(before) if not is_yours(node)]
    return any(piece not in text and piece not in ours for piece in pieces)


def keep_beside(path: Path, text: str) -> str:
    """Write the text into v1_1.py, or under the first number that is free; its name."""
    number = 1
    while (beside := path.with_name(f"{path.stem}_{number}.py")).exists():
        number += 1
    beside.write_text(text, encoding="utf-8", errors="surrogateescape")
    return beside.name


def spoken(path: Path) -> str:
    return f"{path.parent.name}/{path.name}"
