"""Saving a reader's functions, and taking them up again: one way for my_kernel/ and my_pages.py.

What the files have already stays, whoever saved it; what came from there isn't saved again, so an
older notebook never takes the place of a newer one's work.
"""

import ast
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

from pa_tutorial.exercises.kernel_text import functions_in, with_functions
from pa_tutorial.exercises.ours import SET, is_from_a_file, is_unfinished
from pa_tutorial.exercises.reader_files import no_such_name, require_known, text_of, tree_of
from pa_tutorial.exercises.saved_files import (
    DamagedError,
    MyKernelError,
    beside,
    empty_file,
    locked,
    loses,
    place_of,
    reason,
    sources_in,
    spoken,
    text_in,
    with_yours,
    write,
)
from pa_tutorial.exercises.whose import whose
from pa_tutorial.kernels.sources import (
    KernelFileError,
    Source,
    constants,
    functions_of,
    names_used,
    require_same_arguments,
    run_theirs,
    source_of,
)
from pa_tutorial.kernels.sources import parsed as parsed_in_place

ByName = dict[str, Callable | Source]


def save_functions(by_file: dict[str, ByName], known: Mapping[str, object]) -> None:
    """Add a reader's functions to their files, and print what became of each.

    known  the namespace that they go into

    If something of the reader's would be lost, what the file was before stays beside it, as
    v1_1.py. A file of whose functions none is theirs isn't written.
    """
    for file, functions in fit_to_save(by_file, known).items():
        path = place_of(file)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with locked(path):
                save_file(file, path, functions)
        except OSError as error:
            names = ", ".join(functions)
            print(f"{spoken(path)} can't be written: {reason(error)}. {names}: not saved.")
        except MyKernelError as error:
            print(f"{error} {', '.join(functions)}: not saved.")


def fit_to_save(by_file: dict[str, ByName], known: Mapping[str, object]) -> dict[str, ByName]:
    """The functions, by file and name, without those of no use in a file; says why not."""
    trees = [parsed(one) for functions in by_file.values() for one in functions.values()]
    called = set().union(*map(names_used, trees))
    ours, known = known, {*known}.union(*map(functions_of, trees))
    fit: dict[str, ByName] = {file: {} for file in by_file}
    for file, functions in by_file.items():
        for name, one in functions.items():
            try:
                require_known(parsed(one), known, file)
                require_finished(name, one)
                require_definable(name, parsed(one), ours, file)
                if name not in {*functions_in(text_of(file)), *called}:
                    raise KernelFileError(f"{file}.py has no {name}, and none of yours calls it")
                fit[file][name] = one
            except KernelFileError as error:
                print(f"{error}: not saved.")
    return {file: functions for file, functions in fit.items() if functions}


def parsed(function: Callable | Source) -> ast.Module:
    return ast.parse(source_of(function).text)


def require_finished(name: str, function: Callable | Source) -> None:
    if is_unfinished(function):
        raise KernelFileError(f"{name} isn't finished")


def save_file(file: str, path: Path, functions: Mapping[str, Callable | Source]) -> None:
    """Write a file with these functions, and those of the reader's that it has already."""
    ours, kept, damage = empty_file(file), {}, ""
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
    base = ours if damage or lacks(before, file) else before
    text = with_yours(with_functions(base, yours), yours)
    if damage or loses(before, text, ours):
        free = beside(path)
        free.write_bytes(path.read_bytes())
        print(f"{damage}The previous {spoken(path)} is now {free.name}.")
    write(path, text)
    print(f"{spoken(path)} is written. {whose(file, yours)}")


# What was saved -----------------------------------------------------------------------------------


def saved_sources(
    files: Iterable[str],
    known: Mapping[str, object],
    say: Callable[[str], None] = lambda _: None,
    mend: Callable[[Path, DamagedError], str] = lambda _, error: str(error),
) -> dict[str, dict[str, Source]]:
    """The reader's functions that can be used, by file and name.

    known  the namespace that they go into
    say    is told why a file or function can't be used
    mend   does something about a damaged file, and returns what there is to say
    """
    found: dict[str, dict[str, Source]] = {}
    for file in files:
        path = place_of(file)
        if not path.exists():
            continue
        try:
            found[file] = usable(file, sources_in(text_in(path), path), known, say)
        except DamagedError as error:
            say(f"{mend(path, error)} All its functions are ours.")
        except MyKernelError as error:
            say(f"{error} All its functions are ours.")
        known = {**known, **found.get(file, {})}  # the next file may call them
    return found


def set_aside(path: Path, error: DamagedError) -> str:
    """Give a damaged file another name, under which nothing takes its place."""
    try:
        with locked(path):
            free = beside(path)
            path.replace(free)
    except OSError as why:
        return f"{error} It can't be renamed: {reason(why)}."
    return f"{error} It is now {free.name}."


def usable(
    file: str, theirs: dict[str, Source], known: Mapping[str, object], say: Callable[[str], None]
) -> dict[str, Source]:
    """Those that can take the place of ours; says why one can't. Without it, another one that
    calls it may not fit, either."""
    for name, source in theirs.items():
        try:
            tree = parsed_in_place(source)
            require_same_arguments(tree, tree_of(file), file)
            require_known(tree, {**known, **theirs}, file)
            require_finished(name, source)
            require_definable(name, tree, known, file)
        except KernelFileError as error:
            say(f"{spoken(place_of(file))}: {error}. It is replaced with ours.")
            others = {other: theirs[other] for other in theirs if other != name}
            return usable(file, others, known, say)
    return theirs


def require_definable(name: str, tree: ast.Module, known: Mapping[str, object], file: str) -> None:
    """Raises KernelFileError for what a decorator or a default raises, or that only a notebook
    has."""
    module = ModuleType("kernel")
    vars(module).update(known)
    with raised_in_one_line(f"{name} can't be defined"):
        run_theirs(tree, name, module, no_such_name(file))


@contextmanager
def raised_in_one_line(what: str) -> Iterator[None]:
    """MyKernelError for whatever a reader's lines raise while they are executed."""
    try:
        yield
    except KernelFileError:
        raise
    except (Exception, SystemExit) as error:
        words = f"{type(error).__name__}: {error}".splitlines()[0]
        raise MyKernelError(f"{what}: {words}") from None


def lacks(text: str, file: str) -> list[str]:
    """The functions, and the constants that a launch sets, that our file has and a text hasn't."""
    ours, theirs = tree_of(file), ast.parse(text)
    found, missing = functions_of(theirs), SET & constants(ours)
    missing -= constants(theirs)
    for name, arguments in functions_of(ours).items():
        if name not in found or len(found[name]) != len(arguments):
            missing.add(f"{name}({', '.join(arguments)})")
    return sorted(missing)
