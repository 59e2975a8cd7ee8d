"""A kernel for other sizes: its files, executed with other values for the constants at their top.

    kernel = made("v1", HEAD_SIZE=128, BLOCK_SIZE=16)
    kernel.paged_attention_v1, kernel.NUM_WARPS, kernel.load_key

As a C++ template is compiled for other arguments, a file is executed in a namespace of its own with
other values for some of its constants; the lines stay the file's own. What comes later takes the
place of what came before, as in a notebook: v1.py, then a reader's functions of v1; v1_vector.py,
which defines some functions again, then the reader's of that file; v2.py, then theirs. It works
because Numba and the simulator look names up when a kernel is first launched.

An import of one of these files in another is there for readers and linters. It is left out here,
because what it names is in the namespace already.
"""

import ast
import builtins
import inspect
import textwrap
from collections.abc import Callable, Hashable, Iterable, Mapping
from functools import cache, lru_cache
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

from pa_tutorial.arguments import require, require_type, whole_number
from pa_tutorial.kernels.geometry import NUM_THREADS
from pa_tutorial.paging.layouts import BLOCK_SIZES, DTYPES, HEAD_SIZES
from pa_tutorial.paging.quantization import FLOAT8 as CACHE_DTYPES
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
FLOAT8 = "float8"  # the file with what an 8-bit cache changes
# What a kernel can be made for.
SUPPORTED = {
    "HEAD_SIZE": HEAD_SIZES,
    "BLOCK_SIZE": BLOCK_SIZES,
    "DTYPE": DTYPES,
    "NUM_THREADS": NUM_THREADS,
    "CACHE_DTYPE": CACHE_DTYPES,
}
COUNTS = "NUM_QUERIES_PER_KV", "PARTITION_SIZE"
MOST_KEPT = 128  # namespaces; a reader's every try is another one


class KernelFileError(ShortInNotebooks, ValueError):
    """A file or function of a kernel can't be used; the message is one line."""


class Source(NamedTuple):
    """A function, or a whole file of a reader's, as text, with the place where it stands."""

    text: str
    file: str
    line: int


# Pairs of a file and a reader's functions of it.
Mine = tuple[tuple[str, tuple[Callable | Source, ...]], ...]


def made(kernel: str, mine: Mine = (), /, **sizes: object) -> ModuleType:
    """The namespace of a kernel for these sizes: its constants and functions.

    kernel  "naive", "v1", "v1_vector" or "v2"
    mine    a reader's functions of each file, in the place of those of the same name, or in
            addition; a whole file of theirs takes the place of all that it defines. Those of other
            kernels' files aren't taken
    sizes   other values for constants of the files, and of a reader's whole files; with
            CACHE_DTYPE, the kernel for an 8-bit cache

    The same arguments give the same namespace, so a kernel is compiled once (the last MOST_KEPT
    namespaces are kept).

    Raises ValueError for another kernel and for a size that vLLM doesn't have, KernelFileError for
    a name that isn't a constant of the files, and for functions that can't take the place of ours.
    """
    files, theirs = files_of(kernel), dict(mine)
    for name, supported in SUPPORTED.items():
        value = sizes.get(name, supported[0])
        is_supported = isinstance(value, type(supported[0])) and value in supported
        require(is_supported, name, value, f"one of {', '.join(map(str, supported))}")
    for name, value in sizes.items():
        require_type(isinstance(value, Hashable), name, value, "a number, a tuple or a dtype")
    for name in {*COUNTS} & {*sizes}:  # 2.0 == 2, so the kernel made for one would be the other's
        sizes[name] = whole_number(name, sizes[name], 1)
    if "CACHE_DTYPE" in sizes:  # an 8-bit cache is read by vec
        files = (*dict.fromkeys(("v1", "v1_vector", *files)), FLOAT8)
    functions = tuple((file, theirs.get(file, ())) for file in files)
    return _made(functions, tuple(sorted(sizes.items())))


def files_of(kernel: str) -> tuple[str, ...]:
    """The files that make a kernel. Raises ValueError for another name."""
    require(kernel in FILES, "kernel", repr(kernel), f"one of {', '.join(FILES)}")
    return FILES[kernel]


@lru_cache(maxsize=MOST_KEPT)
def _made(functions: Mine, sizes: tuple[tuple[str, object], ...]) -> ModuleType:
    module, unknown = ModuleType("kernel"), {name for name, _ in sizes}
    module._sizes = dict(sizes)
    theirs: list[ast.Module] = []
    for file, mine in functions:
        ours = tree_of(file)
        unknown -= constants(ours)
        run(ours, FOLDER / f"{file}.py", module)
        for source in map(source_of, mine):
            tree = parsed(source)
            require_same_arguments(tree, ours, file)
            unknown -= constants(tree)
            run_theirs(tree, source.file, module)
            theirs.append(tree)
    if unknown:
        names = ", ".join(f"{file}.py" for file, _ in functions)
        raise KernelFileError(f"{', '.join(sorted(unknown))}: no constant of {names}")
    for tree in theirs:
        require_known_names(tree, vars(module))
    require_whole_blocks(module)
    return module


def run(tree: ast.Module, file: object, module: ModuleType) -> None:
    """Execute a file or function in the namespace, with its sizes."""
    exec(compile(with_sizes(tree, module._sizes), str(file), "exec"), vars(module))


def run_theirs(tree: ast.Module, file: object, module: ModuleType) -> None:
    """The same for a reader's. Raises KernelFileError for a name above a function, as a decorator,
    that the namespace doesn't have; for those in it, see require_known_names."""
    try:
        run(tree, file, module)
    except NameError as error:
        names = ", ".join(functions_of(tree)) or str(file)
        raise KernelFileError(f"{names} uses {error.name}: {NO_SUCH_NAME}") from None


def require_whole_blocks(module: ModuleType) -> None:
    """Raises ValueError for partitions that aren't whole blocks: of v2's kernel, none would read
    the rest."""
    size, block_size = getattr(module, "PARTITION_SIZE", 0), getattr(module, "BLOCK_SIZE", 1)
    allowed = f"a multiple of BLOCK_SIZE, which is {block_size}"
    require(size % block_size == 0, "PARTITION_SIZE", size, allowed)


@cache
def tree_of(file: str) -> ast.Module:
    """The syntax tree of one of our files."""
    return without_kernel_imports(ast.parse(text_of(file)))


def text_of(file: str) -> str:
    """The text of one of our files: "v1" is v1.py."""
    return (FOLDER / f"{file}.py").read_text(encoding="utf-8")


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
    return {node.name: [argument.arg for argument in node.args.args] for node in functions}


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


def require_known_names(theirs: ast.Module, known: Iterable[str]) -> None:
    """Raises KernelFileError for a name that the namespace of the kernel doesn't have."""
    for node in theirs.body:
        missing = names_used(node) - {*known} - {*dir(builtins)}
        if isinstance(node, ast.FunctionDef) and missing:
            names = ", ".join(sorted(missing))
            raise KernelFileError(f"{node.name} uses {names}: {NO_SUCH_NAME}")


def names_used(function: ast.AST) -> set[str]:
    """The names that a function takes from outside."""
    nodes = list(ast.walk(function))
    names = [node for node in nodes if isinstance(node, ast.Name)]
    own = {node.arg for node in nodes if isinstance(node, ast.arg)}
    own |= {(n.asname or n.name).split(".")[0] for n in nodes if isinstance(n, ast.alias)}
    own |= {node.name for node in nodes if isinstance(node, ast.FunctionDef)}
    own |= {node.id for node in names if isinstance(node.ctx, ast.Store)}
    return {node.id for node in names} - own
