"""my_kernel/: the kernels with what a reader has written, from notebook to notebook.

    mine = v1_backend.with_functions(**saved("v1"))   # theirs, where saved; ours for the rest
    print(yours(mine))                                # 7 of 12 functions of v1 are yours
    save(mine)                                        # at the end of a notebook
    save(mine, group_sizes)                           # and a function in plain Python

It has naive.py, v1.py, v1_vector.py and v2.py, in the form of ours (pa_tutorial/kernels), and
sizes.py. YOURS in each names the functions that are the reader's; all others are ours, so a check
of a file never certifies ours as theirs.
"""

import ast
import linecache
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

from pa_tutorial.exercises.blank import Blank, text_of
from pa_tutorial.exercises.kernel_text import (
    functions_in,
    with_constants,
    with_functions,
    without_kernel_imports,
)
from pa_tutorial.exercises.ours import (
    BACKENDS,
    READERS,
    SET,
    is_from_a_file,
    is_unfinished,
    last_of_each_name,
    readers,
)
from pa_tutorial.exercises.saved_files import (
    PLACE,
    DamagedError,
    MyKernelError,
    beside,
    empty_file,
    folder_of,
    locked,
    loses,
    names_of_reader,
    old_file,
    reason,
    sources_in,
    spoken,
    text_in,
    with_yours,
    write,
)
from pa_tutorial.exercises.whose import how_many, whose
from pa_tutorial.kernels import template
from pa_tutorial.kernels.cuda_backends import CudaBackend
from pa_tutorial.kernels.template import FILES, KernelFileError, Source, files_of, source_of

__all__ = ["PLACE", "MyKernelError", "load", "save", "saved", "saved_of", "write_kernel", "yours"]

KERNELS = {"cuda_naive": "naive", "cuda_v1": "v1", "cuda_v1_vector": "v1_vector", "cuda_v2": "v2"}
SIZES, SIZES_OF = "sizes", "v1"  # a file in plain Python, and the kernel whose sizes it computes
OLD = (
    "{} is a file of version 1.0. Now my_kernel is a folder, and most functions take thread_idx: "
    "copy yours into the cells of the notebooks, and save them from there."
)


# Saving -------------------------------------------------------------------------------------------


def save(mine: CudaBackend, *sizes: Callable) -> None:
    """Add a reader's functions to the files in my_kernel, and print what became of each.

    sizes  functions in plain Python: group_sizes, row_sizes

    What the files have already stays, whoever saved it; what came from there isn't saved again, so
    an older notebook never takes the place of a newer one's work. If something of the reader's
    would be lost, what the file was before stays beside it, as v1_1.py. A file of whose functions
    none is theirs isn't written.
    """
    folder = folder_of()
    if folder.is_file():
        print(f"{OLD.format(folder)} Nothing is saved.")
        return
    by_file = {file: readers(functions) for file, functions in (*mine.mine, (SIZES, sizes))}
    if not any(by_file.values()):
        print(f"None of these functions is yours yet, so {folder.name} isn't written.")
    for file, functions in fit_to_save(mine.kernel, by_file).items():
        path = folder / f"{file}.py"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with locked(folder):
                save_file(path, functions)
        except OSError as error:
            names = ", ".join(functions)
            print(f"{spoken(path)} can't be written: {reason(error)}. {names}: not saved.")
        except MyKernelError as error:
            print(f"{error} {', '.join(functions)}: not saved.")


def fit_to_save(
    kernel: str, by_file: dict[str, dict[str, Callable | Source]]
) -> dict[str, dict[str, Callable | Source]]:
    """The functions, by file and name, without those of no use in a file; says why not."""
    trees = [tree_of(one) for functions in by_file.values() for one in functions.values()]
    called = set().union(*map(template.names_used, trees))
    known = {*vars(template.made(kernel))}.union(*map(template.functions_of, trees))
    fit: dict[str, dict[str, Callable | Source]] = {file: {} for file in by_file}
    for file, functions in by_file.items():
        for name, one in functions.items():
            try:
                template.require_known_names(tree_of(one), known)
                require_finished(name, one)
                if name not in {*functions_in(text_of(file)), *called}:
                    raise KernelFileError(f"{file}.py has no {name}, and none of yours calls it")
                fit[file][name] = one
            except KernelFileError as error:
                print(f"{error}: not saved.")
    return {file: functions for file, functions in fit.items() if functions}


def tree_of(function: Callable | Source) -> ast.Module:
    return ast.parse(source_of(function).text)


def require_finished(name: str, function: Callable | Source) -> None:
    if is_unfinished(function):
        raise KernelFileError(f"{name} isn't finished")


def save_file(path: Path, functions: Mapping[str, Callable | Source]) -> None:
    """Write a file with these functions, and those of the reader's that it has already."""
    ours, kept, damage = empty_file(path.stem), {}, ""
    before = text_in(path) if path.exists() else ours
    try:
        kept = {name: source.text for name, source in sources_in(before, path).items()}
    except DamagedError as error:
        damage = f"{error} "
    texts = {name: source_of(one).text for name, one in functions.items()}
    new = {name: text for name, text in texts.items() if not is_from_a_file(functions[name])}
    if not (damage or new or texts.keys() - kept.keys()):
        print(f"{spoken(path)}: nothing new.")
        return
    yours = texts | kept | new
    base = ours if damage or lacks(before, path) else before
    text = with_yours(with_functions(base, yours), yours)
    if damage or loses(before, text, ours):
        free = beside(path)
        free.write_bytes(path.read_bytes())
        print(f"{damage}The previous {spoken(path)} is now {free.name}.")
    write(path, text)
    print(f"{spoken(path)} is written. {whose(path.stem, yours)}")


# What was saved -----------------------------------------------------------------------------------


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
    for file, sources in found.items():
        path = folder / f"{file}.py"
        print(f"{spoken(path)}: {whose(file, sources, '' if file == SIZES else kernel)}")
    print(f"{how_many(kernel, found)}.")
    return {f: tuple(sources.values()) for f, sources in found.items() if sources and f != SIZES}


def saved_of(blank: Blank, **sizes: object) -> Callable | None:
    """The reader's function for a blank, as they saved it; None if they have saved none.

    sizes  other values for the constants around it
    """
    kernel = SIZES_OF if blank.file == SIZES else blank.file
    found = sources_for(kernel)
    if blank.function not in found.get(blank.file, {}):
        return None
    theirs = {file: tuple(sources.values()) for file, sources in found.items() if file != SIZES}
    module = BACKENDS[kernel].with_functions(**theirs).namespace(**sizes)
    if blank.file != SIZES:
        return getattr(module, blank.function)
    names = {**vars(module)}
    for source in found[SIZES].values():
        exec(compile(template.parsed(source), source.file, "exec"), names)
    return names[blank.function]


def sources_for(
    kernel: str,
    say: Callable[[str], None] = lambda _: None,
    mend: Callable[[Path, DamagedError], str] = lambda _, error: str(error),
) -> dict[str, dict[str, Source]]:
    """The reader's functions that a kernel can take, by file and name, those in sizes.py too.

    say   is told why a file or function can't be used
    mend  does something about a damaged file, and returns what there is to say
    """
    folder, found = folder_of(), {}
    known = {**vars(template.made(kernel))}
    files = *((SIZES,) if kernel == SIZES_OF else ()), *files_of(kernel)
    paths = [folder / f"{file}.py" for file in files]
    for path in paths if not old_file(folder) else ():
        if not path.exists():
            continue
        try:
            found[path.stem] = usable(sources_in(text_in(path), path), path, known, say)
        except DamagedError as error:
            say(f"{mend(path, error)} All its functions are ours.")
        except MyKernelError as error:
            say(f"{error} All its functions are ours.")
        known |= found.get(path.stem, {})  # the next file may call them
    return found


def set_aside(path: Path, error: DamagedError) -> str:
    """Give a damaged file another name, under which nothing takes its place."""
    try:
        with locked(path.parent):
            free = beside(path)
            path.replace(free)
    except OSError as why:
        return f"{error} It can't be renamed: {reason(why)}."
    return f"{error} It is now {free.name}."


def usable(
    sources: dict[str, Source], path: Path, known: dict[str, object], say: Callable[[str], None]
) -> dict[str, Source]:
    """Those that can take the place of ours; says why one can't. Without it, another one that
    calls it may not fit, either."""
    ours = ast.parse(text_of(path.stem))
    for name, source in sources.items():
        try:
            tree = template.parsed(source)
            template.require_same_arguments(tree, ours, path.stem)
            template.require_known_names(tree, known | sources)
            require_finished(name, source)
            require_definable(name, tree, known)
        except KernelFileError as error:
            say(f"{spoken(path)}: {error}. It is replaced with ours.")
            others = {other: sources[other] for other in sources if other != name}
            return usable(others, path, known, say)
    return sources


def require_definable(name: str, tree: ast.Module, known: dict[str, object]) -> None:
    """Raises MyKernelError for what a decorator or a default raises."""
    module = ModuleType("kernel")
    vars(module).update(known)
    with raised_in_one_line(f"{name} can't be defined"):
        template.run_theirs(tree, name, module)


@contextmanager
def raised_in_one_line(what: str) -> Iterator[None]:
    """MyKernelError for whatever a reader's lines raise while they are executed."""
    try:
        yield
    except KernelFileError:
        raise
    except Exception as error:
        words = f"{type(error).__name__}: {error}".splitlines()[0]
        raise MyKernelError(f"{what}: {words}") from None


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
        if missing := lacks(text, path):
            raise MyKernelError(f"{path} isn't complete: it lacks {', '.join(missing)}.")
        print(f"{path}: {whose(path.stem, theirs, kernel)}")
        whole[path.stem] = (Source(text, str(path), 1),)
    backend = BACKENDS[kernel].with_functions(**whole)
    with raised_in_one_line(f"{folder} can't be executed"):
        backend.namespace()
    print(f"{yours(backend)}.")
    return backend


def lacks(text: str, path: Path) -> list[str]:
    """The functions, and the constants that a launch sets, that our file has and a text hasn't."""
    ours, theirs = ast.parse(text_of(path.stem)), ast.parse(text)
    found, missing = template.functions_of(theirs), SET & template.constants(ours)
    missing -= template.constants(theirs)
    for name, arguments in template.functions_of(ours).items():
        if name not in found or len(found[name]) != len(arguments):
            missing.add(f"{name}({', '.join(arguments)})")
    return sorted(missing)


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
