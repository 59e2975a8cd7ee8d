"""The files that a reader writes: those of the kernels, and in plain Python sizes.py, pages.py."""

import ast
from collections.abc import Iterable
from functools import cache, lru_cache
from pathlib import Path
from types import ModuleType

from pa_tutorial.kernels import sources
from pa_tutorial.kernels.sources import FILES, Mine, require_known_names, run_with_theirs

PLAIN = "sizes", "pages"
FOLDER = Path(__file__).resolve().parent
MOST_KEPT = 16  # namespaces; a reader's every try is another one


def path_of(file: str) -> Path:
    """Of ours: pages.py here, v1.py among the kernels."""
    return FOLDER / f"{file}.py" if file in PLAIN else sources.path_of(file)


def text_of(file: str) -> str:
    return path_of(file).read_text(encoding="utf-8")


@cache
def tree_of(file: str) -> ast.Module:
    return ast.parse(text_of(file)) if file in PLAIN else sources.tree_of(file)


def files_with(file: str) -> tuple[str, ...]:
    """The files whose functions the kernel of a file has; of plain Python, only the file."""
    return FILES.get(file, (file,))


def require_known(theirs: ast.Module, known: Iterable[str], file: str) -> None:
    """Raises KernelFileError for a name that a reader's function of a file can't use."""
    require_known_names(theirs, known, no_such_name(file))


def no_such_name(file: str) -> str:
    return f"{file}.py has no such name" if file in PLAIN else sources.NO_SUCH_NAME


@lru_cache(maxsize=MOST_KEPT)
def made(file: str, mine: Mine = ()) -> ModuleType:
    """The namespace of a file in plain Python, with a reader's functions in it.

    Raises KernelFileError for one that can't take the place of ours.
    """
    module = ModuleType(file)
    module._sizes = {}
    theirs, words = dict(mine).get(file, ()), no_such_name(file)
    for tree in run_with_theirs(tree_of(file), path_of(file), theirs, module, words):
        require_known(tree, vars(module), file)
    return module
