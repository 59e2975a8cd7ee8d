"""What the text of an answer may not contain: ways around the check.

This stops a student who looks for an easy way, not one who sets out to break in: code that runs
beside the check can always reach it in the end. COURSE.md says what to do about that.
"""

import ast
import sys
from collections.abc import Iterable, Iterator
from importlib.machinery import PathFinder


def words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


ALLOWED = words("""
    __future__ abc bisect cmath collections contextlib copy dataclasses decimal enum fractions
    functools heapq itertools math numbers operator random statistics time typing warnings
    numpy torch numba triton
    pa_tutorial.arguments pa_tutorial.attention pa_tutorial.distributed pa_tutorial.engine
    pa_tutorial.kernels pa_tutorial.paging pa_tutorial.simt
""")
FORBIDDEN_NAMES = words("""
    breakpoint compile delattr eval exec exit getattr globals help input locals open quit setattr
    vars
""")
# As an attribute, or imported from a module that may be imported: modules that lead to everything;
# our checks and solutions; frames of those who call; text as code or as attributes; files.
FORBIDDEN_ATTRIBUTES = words("""
    ast atexit bltns builtins cloudpickle codecs cpp_extension ctypes ctypeslib f2py faulthandler gc
    importlib inspect io linecache mmap mock modules multiprocessing os pathlib pickle pkgutil posix
    runpy shutil signal socket subprocess sys tempfile threading timeit tokenize traceback
    changed checks coursework exercises text_changes
    ag_frame cr_frame f_back f_builtins f_globals f_locals gi_frame tb_frame tb_next
    ForwardRef attrgetter get_type_hints methodcaller runstring
    DataSource dump from_file fromfile fromregex genfromtxt load_inline load_library loadtxt memmap
    open open_memmap popen save savetxt savez savez_compressed system tofile
""")
USUAL_DUNDERS = words("""
    __call__ __doc__ __enter__ __eq__ __exit__ __getitem__ __hash__ __init__ __iter__ __len__ __lt__
    __name__ __next__ __post_init__ __repr__ __setitem__ __version__
""")


def objection(text: str, own_modules: frozenset[str] = frozenset()) -> str:
    """Why a text is not run, for its author; "" if nothing is wrong with it.

    own_modules  names of the student's other files, which it may import
    """
    try:
        # bytes: a line that names another encoding counts, as it does when the file is imported
        tree = ast.parse(text.encode())
    except SyntaxError as error:
        return f"line {error.lineno} is not Python: {error.msg}"
    except (ValueError, RecursionError, MemoryError) as error:
        return f"line 1 is not Python: {error}"
    imported = _imported(tree)
    for node in ast.walk(tree):
        for what in _forbidden(node, own_modules, imported):
            return f"line {node.lineno} {what}"
    return ""


def own_modules(names: Iterable[str]) -> frozenset[str]:
    """Names of modules for names of files; without those that Python would find elsewhere."""
    installed = [path for path in sys.path if "site-packages" in path]
    stems = (name.removesuffix(".py") for name in names)
    return frozenset(
        stem
        for stem in stems
        if stem not in (*sys.stdlib_module_names, "pa_tutorial")
        and PathFinder.find_spec(stem, installed) is None
    )


def _imported(tree: ast.Module) -> frozenset[str]:
    """The names under which a text has what it imports."""
    nodes = (n for n in ast.walk(tree) if isinstance(n, ast.Import | ast.ImportFrom))
    return frozenset((a.asname or a.name).split(".")[0] for node in nodes for a in node.names)


def _forbidden(
    node: ast.AST, own_modules: frozenset[str], imported: frozenset[str]
) -> Iterator[str]:
    if isinstance(node, ast.Import | ast.ImportFrom):
        yield from _forbidden_imports(node, own_modules)
    elif isinstance(node, ast.Name) and (node.id in FORBIDDEN_NAMES or _is_inside(node.id)):
        yield f"uses {node.id}, which an answer may not"
    elif isinstance(node, ast.Attribute):
        root = _root(node)
        if _leads_out(node.attr) or (node.attr.startswith("_") and root in imported):
            yield f"uses .{node.attr}, which an answer may not"
        elif root in imported and not isinstance(node.ctx, ast.Load):
            yield f"changes {root}, which it imports"
    elif isinstance(node, ast.MatchClass):
        yield from (f"uses .{a}, which an answer may not" for a in node.kwd_attrs if _leads_out(a))


def _forbidden_imports(
    node: ast.Import | ast.ImportFrom, own_modules: frozenset[str]
) -> Iterator[str]:
    module = node.module or "" if isinstance(node, ast.ImportFrom) else ""
    for alias in node.names:
        # `from pa_tutorial import checks` imports pa_tutorial.checks
        name = f"{module}.{alias.name}" if module in ("", "pa_tutorial") else module
        name = alias.name if isinstance(node, ast.Import) else name
        allowed = (*ALLOWED, *own_modules)
        if not any(name == one or name.startswith(one + ".") for one in allowed):
            shown = "from a relative place" if name.startswith(".") else name
            yield f"imports {shown}; an answer may import: {', '.join(ALLOWED)}"
        for part in (*module.split("."), *alias.name.split(".")):
            if part != "__future__" and (_leads_out(part) or part.startswith("_")):
                yield f"imports {part}, which an answer may not"


def _root(node: ast.expr) -> str:
    """The name in front of all the dots and brackets; "" if there is none."""
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def _leads_out(attribute: str) -> bool:
    return attribute in FORBIDDEN_ATTRIBUTES or _is_inside(attribute)


def _is_inside(name: str) -> bool:
    return name.startswith("__") and name.endswith("__") and name not in USUAL_DUNDERS
