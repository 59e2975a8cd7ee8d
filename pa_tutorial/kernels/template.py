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

from collections.abc import Hashable
from functools import lru_cache
from types import ModuleType

from pa_tutorial.arguments import require, require_type, whole_number
from pa_tutorial.kernels.geometry import NUM_THREADS
from pa_tutorial.kernels.sources import (
    FILES,
    KernelFileError,
    Mine,
    constants,
    path_of,
    require_known_names,
    run_with_theirs,
    tree_of,
)
from pa_tutorial.paging.layouts import BLOCK_SIZES, DTYPES, HEAD_SIZES
from pa_tutorial.paging.quantization import FLOAT8 as CACHE_DTYPES

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
    theirs = []
    for file, mine in functions:
        trees = run_with_theirs(tree_of(file), path_of(file), mine, module)
        unknown -= constants(tree_of(file)).union(*map(constants, trees))
        theirs += trees
    if unknown:
        names = ", ".join(f"{file}.py" for file, _ in functions)
        raise KernelFileError(f"{', '.join(sorted(unknown))}: no constant of {names}")
    for tree in theirs:
        require_known_names(tree, vars(module))
    require_whole_blocks(module)
    return module


def require_whole_blocks(module: ModuleType) -> None:
    """Raises ValueError for partitions that aren't whole blocks: of v2's kernel, none would read
    the rest."""
    size, block_size = getattr(module, "PARTITION_SIZE", 0), getattr(module, "BLOCK_SIZE", 1)
    allowed = f"a multiple of BLOCK_SIZE, which is {block_size}"
    require(size % block_size == 0, "PARTITION_SIZE", size, allowed)
