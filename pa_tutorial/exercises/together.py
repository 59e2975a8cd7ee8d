"""A reader's functions together: those that their notebook has so far, and ours for the rest."""

from collections.abc import Callable, Mapping

from pa_tutorial.exercises.ours import is_ours, is_unfinished
from pa_tutorial.kernels import template
from pa_tutorial.kernels.template import FILES, KernelFileError

Functions = Mapping[str, tuple[Callable, ...]]  # by file of the kernel


def others_of(function: Callable, file: str) -> Functions:
    """The other functions of the reader's that the kernel of a file calls.

    They are found where the function itself finds them, in its notebook. A name that several files
    define, such as load_key, means the last of them, as in the notebook of that kernel.
    """
    plain = getattr(function, "py_func", function)
    known, files = plain.__globals__, FILES.get(file, ())
    file_of = {name: one for one in files for name in template.functions_of(template.tree_of(one))}
    found: dict[str, tuple[Callable, ...]] = {}
    for name, one in file_of.items():
        theirs = known.get(name)
        if name != plain.__name__ and is_named(theirs, name) and is_theirs(theirs):
            found[one] = (*found.get(one, ()), theirs)
    return found


def one_by_one(functions: Functions) -> dict[str, Functions]:
    """Each by itself, by name."""
    return {
        one.py_func.__name__: {file: (one,)}
        for file, several in functions.items()
        for one in several
    }


def is_named(function: object, name: str) -> bool:
    """Whether it is a function for the GPU that was defined under this name."""
    return getattr(getattr(function, "py_func", None), "__name__", "") == name


def is_theirs(function: Callable) -> bool:
    """Whether it is a reader's, and finished."""
    try:
        return not is_ours(function) and not is_unfinished(function)
    except KernelFileError:  # it has no source
        return False


def with_answer(beside: Functions, file: str, answer: Callable | None) -> Functions:
    """An answer among a reader's other functions; None: our kernel, with none of theirs."""
    return {**beside, file: (*beside.get(file, ()), answer)} if answer else {}
