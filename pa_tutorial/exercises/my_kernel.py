"""my_kernel/: the kernels with what a reader has written, from notebook to notebook.

    mine = v1_backend.with_functions(**saved("v1"))   # theirs, where saved; ours for the rest
    print(yours(mine))                                # 7 of 12 functions of v1 are yours
    save(mine)                                        # at the end of a notebook
    save(mine, group_sizes)                           # and a function in plain Python

It has naive.py, v1.py, v1_vector.py and v2.py, in the form of ours (pa_tutorial/kernels), and
sizes.py. YOURS in each names the functions that are the reader's; all others are ours, so a check
of a file never certifies ours as theirs.
"""

import linecache
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

from pa_tutorial.exercises.blank import Blank
from pa_tutorial.exercises.kernel_text import (
    functions_in,
    with_constants,
    with_functions,
    without_kernel_imports,
)
from pa_tutorial.exercises.our_kernels import BACKENDS
from pa_tutorial.exercises.ours import READERS, last_of_each_name, readers
from pa_tutorial.exercises.reader_files import text_of
from pa_tutorial.exercises.saved_files import (
    PLACE,
    MyKernelError,
    folder_of,
    names_of_reader,
    old_file,
    place_of,
    sources_in,
    spoken,
    text_in,
    write,
)
from pa_tutorial.exercises.saving import (
    lacks,
    raised_in_one_line,
    save_functions,
    saved_sources,
    set_aside,
)
from pa_tutorial.exercises.whose import how_many, whose
from pa_tutorial.kernels import template
from pa_tutorial.kernels.cuda_backends import CudaBackend
from pa_tutorial.kernels.sources import FILES, Source, source_of
from pa_tutorial.kernels.template import files_of

__all__ = ["PLACE", "MyKernelError", "load", "save", "saved", "saved_in", "write_kernel", "yours"]

KERNELS = {"cuda_naive": "naive", "cuda_v1": "v1", "cuda_v1_vector": "v1_vector", "cuda_v2": "v2"}
SIZES, SIZES_OF = "sizes", "v1"  # a file in plain Python, and the kernel whose sizes it computes
OLD = (
    "{} is a file of version 1.0. Now my_kernel is a folder, and most functions take thread_idx: "
    "copy yours into the cells of the notebooks, and save them from there."
)


def save(mine: CudaBackend, *sizes: Callable) -> None:
    """Add a reader's functions to the files in my_kernel, and print what became of each.

    sizes  functions in plain Python: group_sizes, row_sizes

    See saving.py.
    """
    folder = folder_of()
    if folder.is_file():
        print(f"{OLD.format(folder)} Nothing is saved.")
        return
    by_file = {file: readers(functions) for file, functions in (*mine.mine, (SIZES, sizes))}
    if not any(by_file.values()):
        print(f"None of these functions is yours yet, so {folder.name} isn't written.")
    save_functions(by_file, vars(template.made(mine.kernel)))


def saved(kernel: str) -> dict[str, tuple[Source, ...]]:
    """The reader's functions for a kernel, by file; prints whose functions it takes.

    kernel  "naive", "v1", "v1_vector" or "v2"

    Nothing is raised. A file that can't be used is named, and our functions take the place of its;
    a damaged one is set aside, as v1_1.py. What sizes.py has comes with write_kernel.
    """
    folder, files = folder_of(), files_of(kernel)
    if old := old_file(folder):
        print(f"{OLD.format(old)} {how_many(kernel, {})}.")
        return {}
    if not any((folder / f"{file}.py").exists() for file in files):
        print(f"{folder.name} has no {files[-1]}.py yet.")
    found = sources_for(kernel, print, set_aside)
    for file, theirs in found.items():
        print(f"{spoken(place_of(file))}: {whose(file, theirs, '' if file == SIZES else kernel)}")
    print(f"{how_many(kernel, found)}.")
    return {f: tuple(theirs.values()) for f, theirs in found.items() if theirs and f != SIZES}


def saved_in(blank: Blank, **constants: object) -> Callable | None:
    """The reader's function for a blank of a kernel, as they saved it; None if they haven't.

    constants  other values for those around it
    """
    found = sources_for(blank.file)
    if blank.function not in found.get(blank.file, {}):
        return None
    theirs = {file: tuple(sources.values()) for file, sources in found.items() if file != SIZES}
    module = BACKENDS[blank.file].with_functions(**theirs).namespace(**constants)
    return getattr(module, blank.function)


def sources_for(kernel: str, *say_and_mend: Callable) -> dict[str, dict[str, Source]]:
    """The reader's functions that a kernel can take, those in sizes.py too: see saved_sources."""
    if old_file(folder_of()):
        return {}
    files = *((SIZES,) if kernel == SIZES_OF else ()), *files_of(kernel)
    return saved_sources(files, vars(template.made(kernel)), *say_and_mend)


def yours(mine: CudaBackend) -> str:
    """How many of a kernel's functions are the reader's: 7 of 12 functions of v1 are yours"""
    found = {}
    for file, functions in mine.mine:
        found[file] = {*readers(functions)}
        for source in map(source_of, functions):
            if len(functions_in(source.text)) > 1:  # a whole file, as `load` gives
                found[file] |= names_of_reader(source.text)
    return how_many(mine.kernel, found)


# The files as a kernel ----------------------------------------------------------------------------


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
        theirs = sources_in(text, path)
        if missing := lacks(text, path.stem):
            raise MyKernelError(f"{path} isn't complete: it lacks {', '.join(missing)}.")
        print(f"{path}: {whose(path.stem, theirs, kernel)}")
        whole[path.stem] = (Source(text, str(path), 1),)
    backend = BACKENDS[kernel].with_functions(**whole)
    with raised_in_one_line(f"{folder} can't be executed"):
        backend.namespace()
    print(f"{yours(backend)}.")
    return backend


def write_kernel(path: str | Path, backend: CudaBackend, **sizes: object) -> None:
    """Write a kernel as one file, so that `from kernel_v1 import *` gives what stands in it now.

    sizes  other values for its constants

    v1's has group_sizes and row_sizes too, as they were saved, or ours.

    Raises KernelFileError as backend.namespace does, MyKernelError for a backend from `load`.
    """
    backend.namespace(**sizes)
    sources = [source_of(one).text for _, functions in backend.mine for one in functions]
    if any(len(functions_in(text)) != 1 for text in sources):
        raise MyKernelError(f"{path} isn't written: the backend has whole files, as `load` gives.")
    path, theirs, text = Path(path), dict(backend.mine), ""
    files = files_of(backend.kernel)
    if backend.kernel == SIZES_OF:
        files, theirs[SIZES] = (*files, SIZES), sources_for(SIZES_OF).get(SIZES, {}).values()
    names: set[str] = set()
    for file in files:
        functions = last_of_each_name(theirs.get(file, ()))
        texts = {name: source_of(function).text for name, function in functions.items()}
        text += with_functions(without_kernel_imports(text_of(file)), texts) + "\n\n"
        names = names - functions_in(text_of(file)).keys() | readers(functions.values()).keys()
    text = with_constants(text, sizes).rstrip() + "\n"
    write(path, text)
    READERS[path.resolve()] = names
    keep_in_memory(path, text)


def keep_in_memory(path: Path, text: str) -> None:
    """The module that an import of the file gives, and its lines: as they are now, even if another
    notebook writes the file again."""
    place = str(path.absolute())
    linecache.cache[place] = len(text), None, text.splitlines(True), place
    module = ModuleType(path.stem)
    module.__file__ = place
    exec(compile(text, place, "exec"), vars(module))
    sys.modules[path.stem] = module
