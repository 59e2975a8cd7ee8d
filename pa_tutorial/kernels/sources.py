"""The files of kernels as text and syntax trees, and a reader's functions in their places.

This is what `template` makes kernels of, and what the reader's files of exercises are made of; it
knows no sizes and loads no simulator.
"""

import ast
import builtins
import inspect
import textwrap
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

from pa_tutorial.tracebacks import ShortInNotebooks

FOLDER = Path(__file__).parent
# Each kernel, and the files that make it.
FILES: dict[str, tuple[str, ...]] = {
    "naive": ("naive",),
    "v1": ("v1",),
    "v1_vector": ("v1", "v1_vector"),
    "v2": ("v1", "v1_vector", "v2"),
}
NO_SUCH_NAME = "the kernel's files have no such name"


class KernelFileError(ShortInNotebooks, ValueError):
    """A file or function of a kernel can't be used; the message is one line."""


class Source(NamedTuple):
    """A function, or a whole file of a reader's, as text, with the place where it stands."""

    text: str
    file: str
    line: int


# Pairs of a file and a reader's functions of it.
Mine = tuple[tuple[str, tuple[Callable | Source, ...]], ...]


@cache
def tree_of(file: str) -> ast.Module:
    """The syntax tree of one of our files."""
    return without_kernel_imports(ast.parse(text_of(file)))


def text_of(file: str) -> str:
    """The text of one of our files: "v1" is v1.py."""
    return path_of(file).read_text(encoding="utf-8")


def path_of(file: str) -> Path:
    return FOLDER / f"{file}.py"


def without_kernel_imports(tree: ast.Module) -> ast.Module:
    others = {f"{__package__}.{name}" for names in FILES.values() for name in names}
    body = [n for n in tree.body if not (isinstance(n, ast.ImportFrom) and n.module in others)]
    return ast.Module(body, type_ignores=[])


def constants(tree: ast.Module) -> set[str]:
    """The names that a file assigns at its top level, one by one."""
    return {n.targets[0].id for n in tree.body if is_constant(n)}


def is_constant(node: ast.stmt) -> bool:
    return isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)


def with_sizes(tree: ast.Module, sizes: Mapping[str, object]) -> ast.Module:
    """The tree in which `NAME = …` became `NAME = _sizes["NAME"]`, for the names in sizes."""
    body = []
    for node in tree.body:
        if is_constant(node) and node.targets[0].id in sizes:
            name = node.targets[0].id
            (changed,) = ast.parse(f"{name} = _sizes[{name!r}]").body
            node = ast.increment_lineno(changed, node.lineno - 1)
        body.append(node)
    return ast.Module(body, type_ignores=[])


# A reader's functions -----------------------------------------------------------------------------


def run_with_theirs(
    ours: ast.Module,
    path: Path,
    mine: Iterable[Callable | Source],
    module: ModuleType,
    no_such_name: str = NO_SUCH_NAME,
) -> list[ast.Module]:
    """Execute one of our files in a namespace, and then a reader's functions of it.

    Returns the trees of theirs: see require_known_names. Raises KernelFileError for one that can't
    take the place of ours.
    """
    run(ours, path, module)
    trees = []
    for source in map(source_of, mine):
        tree = parsed(source)
        require_same_arguments(tree, ours, path.stem)
        run_theirs(tree, source.file, module, no_such_name)
        trees.append(tree)
    return trees


def run(tree: ast.Module, file: object, module: ModuleType) -> None:
    """Execute a file or function in the namespace, with its sizes."""
    exec(compile(with_sizes(tree, module._sizes), str(file), "exec"), vars(module))


def run_theirs(
    tree: ast.Module, file: object, module: ModuleType, no_such_name: str = NO_SUCH_NAME
) -> None:
    """The same for a reader's. Raises KernelFileError for a name above a function, as a decorator,
    that the namespace doesn't have; for those in it, see require_known_names."""
    try:
        run(tree, file, module)
    except NameError as error:
        names = ", ".join(functions_of(tree)) or str(file)
        raise KernelFileError(f"{names} uses {error.name}: {no_such_name}") from None


def source_of(function: Callable | Source) -> Source:
    """A function's text, as its cell or file has it, and where that stands."""
    if isinstance(function, Source):
        return function
    plain = getattr(function, "py_func", function)
    try:
        text, code = textwrap.dedent(inspect.getsource(plain)), plain.__code__
        ast.parse(text)
    except (OSError, TypeError, AttributeError, SyntaxError):  # a lambda's lines may be no Python
        name = getattr(plain, "__name__", repr(function))
        allowed = "it must be a function of a file or of a cell without %%time"
        raise KernelFileError(f"{name} has no source; {allowed}") from None
    return Source(text, code.co_filename, code.co_firstlineno)


def parsed(source: Source) -> ast.Module:
    """Its syntax tree, with the lines of its cell or file. Raises KernelFileError for a text that
    isn't Python."""
    try:
        tree = ast.parse(source.text)
    except (SyntaxError, ValueError) as error:
        raise KernelFileError(f"{source.file} is damaged: {error}") from None
    return ast.increment_lineno(without_kernel_imports(tree), source.line - 1)


def functions_of(tree: ast.Module) -> dict[str, list[str]]:
    """The functions of a tree, and the names of their arguments."""
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    return {n.name: [one.arg for one in (*n.args.posonlyargs, *n.args.args)] for n in functions}


def require_same_arguments(theirs: ast.Module, ours: ast.Module, file: str) -> None:
    """Raises KernelFileError for a function that takes another number of arguments than ours."""
    known = functions_of(ours)
    for name, found in functions_of(theirs).items():
        wanted = known.get(name, found)
        if len(found) != len(wanted):
            raise KernelFileError(
                f"{name} takes ({', '.join(found)}); it must take ({', '.join(wanted)}), as in "
                f"{file}.py"
            )


def require_known_names(
    theirs: ast.Module, known: Iterable[str], no_such_name: str = NO_SUCH_NAME
) -> None:
    """Raises KernelFileError for a name that their namespace doesn't have."""
    for node in theirs.body:
        missing = names_used(node) - {*known} - {*dir(builtins)}
        if isinstance(node, ast.FunctionDef) and missing:
            names = ", ".join(sorted(missing))
            raise KernelFileError(f"{node.name} uses {names}: {no_such_name}")


def names_used(function: ast.AST) -> set[str]:
    """The names that a function takes from outside."""
    nodes = list(ast.walk(function))
    names = [node for node in nodes if isinstance(node, ast.Name)]
    own = {node.arg for node in nodes if isinstance(node, ast.arg)}
    own |= {(n.asname or n.name).split(".")[0] for n in nodes if isinstance(n, ast.alias)}
    own |= {node.name for node in nodes if isinstance(node, ast.FunctionDef)}
    own |= {node.id for node in names if isinstance(node.ctx, ast.Store)}
    own -= {name for node in nodes if isinstance(node, ast.Global) for name in node.names}
    return {node.id for node in names} - own
