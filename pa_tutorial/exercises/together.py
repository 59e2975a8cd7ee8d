"""A reader's functions together: those that their notebook has so far, and ours for the rest."""

import ast
from collections.abc import Callable, Mapping, Sequence
from inspect import isfunction

from pa_tutorial.exercises.ours import is_ours, is_unfinished
from pa_tutorial.exercises.reader_files import PLAIN, files_with, tree_of
from pa_tutorial.kernels.sources import KernelFileError, functions_of, names_used, source_of

Functions = Mapping[str, tuple[Callable, ...]]  # by file of the kernel


def others_of(function: Callable, file: str) -> Functions:
    """The other functions of the reader's that a file has, or in a kernel's file its kernel.

    They are found where the function itself finds them, in its notebook. A name that several files
    define, such as load_key, means the last of them, as in the notebook of that kernel.
    """
    plain = getattr(function, "py_func", function)
    known = plain.__globals__
    file_of = {name: one for one in files_with(file) for name in functions_of(tree_of(one))}
    found: dict[str, tuple[Callable, ...]] = {}
    for name, one in file_of.items():
        theirs = known.get(name)
        if name != plain.__name__ and is_named(theirs, name, file) and is_theirs(theirs):
            found[one] = (*found.get(one, ()), theirs)
    return found


def helpers_of(functions: Sequence[Callable], file: str) -> list[Callable]:
    """What functions call of the reader's that no file of ours has; and what these call."""
    found: dict[str, Callable] = {}
    for function in functions:
        called = names_used(ast.parse(source_of(function).text))
        for name in called - functions_of(tree_of(file)).keys():
            theirs = function.__globals__.get(name)
            is_imported = getattr(theirs, "__globals__", None) is not function.__globals__
            if not is_imported and is_named(theirs, name, file) and is_theirs(theirs):
                found[name] = theirs
    new = [one for one in found.values() if one not in functions]
    return [*helpers_of([*functions, *new], file), *new] if new else []


def one_by_one(functions: Functions) -> dict[str, Functions]:
    """Each by itself, by name."""
    return {
        getattr(one, "py_func", one).__name__: {file: (one,)}
        for file, several in functions.items()
        for one in several
    }


def is_named(function: object, name: str, file: str) -> bool:
    """Whether it is a function that was defined under this name; for a kernel, one for the GPU."""
    plain = function if file in PLAIN else getattr(function, "py_func", None)
    return isfunction(plain) and plain.__name__ == name


def is_theirs(function: Callable) -> bool:
    """Whether it is a reader's, and finished."""
    try:
        return not is_ours(function) and not is_unfinished(function)
    except KernelFileError:  # it has no source
        return False


def with_answer(beside: Functions, file: str, answer: Callable | None) -> Functions:
    """An answer among a reader's other functions; None: our kernel, with none of theirs."""
    return {**beside, file: (*beside.get(file, ()), answer)} if answer else {}
