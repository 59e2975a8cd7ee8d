"""What the text of an answer may not contain: ways around the check.

This stops a student who looks for an easy way, not one who sets out to break in: code that runs
beside the check can always reach it in the end. COURSE.md says what to do about that.
"""

import ast

ALLOWED = (
    *("bisect", "collections", "dataclasses", "enum", "functools", "heapq", "itertools", "math"),
    *("operator", "random", "statistics", "typing", "numpy", "torch", "numba", "triton"),
    *("pa_tutorial.arguments", "pa_tutorial.attention", "pa_tutorial.distributed"),
    *("pa_tutorial.engine", "pa_tutorial.kernels", "pa_tutorial.paging", "pa_tutorial.simt"),
)
FORBIDDEN_NAMES = {
    *("__builtins__", "__import__", "breakpoint", "compile", "delattr", "eval", "exec", "exit"),
    *("getattr", "globals", "input", "locals", "open", "quit", "setattr", "vars"),
}
FORBIDDEN_ATTRIBUTES = {"builtins", "ctypes", "gc", "importlib", "modules", "os", "subprocess"}
FORBIDDEN_ATTRIBUTES |= {"sys", "f_back", "f_globals", "gi_frame", "tb_frame"}
USUAL_DUNDERS = {"__call__", "__getitem__", "__init__", "__iter__", "__len__", "__name__"}


def objection(text: str, own_modules: frozenset[str] = frozenset()) -> str:
    """Why a text is not run, for its author; "" if nothing is wrong with it.

    own_modules  names of the student's other files, which it may import
    """
    try:
        tree = ast.parse(text)
    except SyntaxError as error:
        return f"line {error.lineno} is not Python: {error.msg}"
    for node in ast.walk(tree):
        for what in _forbidden(node, own_modules):
            return f"line {node.lineno} {what}"
    return ""


def _forbidden(node: ast.AST, own_modules: frozenset[str]) -> list[str]:
    if isinstance(node, ast.Import):
        return [_import(a.name) for a in node.names if not _may_import(a.name, own_modules)]
    if isinstance(node, ast.ImportFrom):
        # `from pa_tutorial import checks` imports pa_tutorial.checks
        wanted = [node.module or ""]
        if node.module == "pa_tutorial":
            wanted = [f"pa_tutorial.{alias.name}" for alias in node.names]
        return [_import(name) for name in wanted if not _may_import(name, own_modules)]
    if isinstance(node, ast.Name) and node.id in FORBIDDEN_NAMES:
        return [f"uses {node.id}, which an answer may not"]
    if isinstance(node, ast.Attribute):
        dunder = node.attr.startswith("__") and node.attr not in USUAL_DUNDERS
        if dunder or node.attr in FORBIDDEN_ATTRIBUTES:
            return [f"uses .{node.attr}, which an answer may not"]
    return []


def _may_import(name: str, own_modules: frozenset[str]) -> bool:
    allowed = (*ALLOWED, *own_modules)
    return any(name == one or name.startswith(one + ".") for one in allowed)


def _import(name: str) -> str:
    return f"imports {name or 'from a relative place'}; an answer may import: {', '.join(ALLOWED)}"
