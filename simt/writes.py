"""Which arguments of a kernel may be written to, judging by its text.

Reads of an array that is never written can't race, so the race check needn't remember them. The
answer errs on the safe side: an array counts as "only read" only if no name that could refer to it,
or to part of it, is stored into or passed to something unknown.
"""

import ast
from collections.abc import Callable

from simt.arithmetic import MATH
from simt.intrinsics import ARRAYS, FUNCTIONS, WRITERS
from simt.known import UNKNOWN, Known
from simt.names import cast_target, cuda_name
from simt.source import Source, Unsupported
from simt.twins import WRITTEN

READERS = (range, enumerate, zip, len, min, max, abs, divmod, int, float, bool, print)
Names = frozenset[str]


class Writes:
    """The answers for the functions of one program, each computed once."""

    def __init__(self, program: object) -> None:
        self.program = program
        self.found: dict[Callable, Names] = {}

    def parameters(self, function: Callable) -> Names:
        """The parameters of a function that may be written through."""
        if function not in self.found:
            device = self.program.functions[function,]
            self.found[function] = frozenset(device.parameters)  # for a function that calls itself
            written, flows = self._of_body(function, device.source)
            self.found[function] = _reached(written, flows) & frozenset(device.parameters)
        return self.found[function]

    def _of_body(self, function: Callable, source: Source) -> tuple[set[str], list]:
        """Names that are stored into, and pairs (name, names that it may refer to)."""
        known = Known(self.program, function, source)
        written: set[str] = set()
        flows: list[tuple[str, Names]] = []

        def store(target: ast.expr, value: Names) -> None:
            match target:
                case ast.Name(id=name):
                    flows.append((name, value))
                case ast.Starred(value=part):
                    store(part, value)
                case ast.Tuple(elts=parts) | ast.List(elts=parts):
                    for part in parts:
                        store(part, value)
                case _:
                    written.update(_arrays(target))

        for node in source.calls_and_assignments:
            match node:
                case ast.FunctionDef(name=name) if node is not source.tree:  # defined inside
                    flows.append((name, frozenset().union(*map(_arrays, node.body))))
                case ast.Assign(targets=targets, value=value):
                    for target in targets:
                        store(target, _arrays(value))
                case ast.AugAssign(target=target, value=value):
                    store(target, _arrays(value))
                case ast.AnnAssign(target=target, value=ast.expr() as value):
                    store(target, _arrays(value))
                case ast.NamedExpr(target=target, value=value):
                    store(target, _arrays(value))
                case ast.For(target=target, iter=value):
                    store(target, _arrays(value))
                case ast.Call():
                    written |= self._by_call(known, node)
        return written, flows

    def _by_call(self, known: Known, node: ast.Call) -> Names:
        """What a call may write to."""
        arguments = [*node.args, *(keyword.value for keyword in node.keywords)]
        try:
            callee = known.known(node.func)
        except Unsupported:
            callee = UNKNOWN
        if (callee,) in self.program.functions:
            names = self.program.functions[callee,].parameters
            by_name = dict(zip(names, node.args, strict=False))
            by_name |= {keyword.arg: keyword.value for keyword in node.keywords}
            into = self.parameters(callee)
            return frozenset().union(*(_arrays(v) for n, v in by_name.items() if n in into))
        if callee is not UNKNOWN and _only_reads(callee):
            return frozenset()
        if (cuda_name(callee) or "").startswith(WRITERS):
            return _arrays(arguments[0])
        if type(callee).__hash__ is not None and callee in WRITTEN:
            into = WRITTEN[callee]
            return frozenset().union(*(_arrays(a) for i, a in enumerate(node.args) if i in into))
        return frozenset().union(_arrays(node.func), *map(_arrays, arguments))


def _only_reads(callee: object) -> bool:
    name = cuda_name(callee)
    if name is not None:
        return name in ARRAYS or (name in FUNCTIONS and not name.startswith(WRITERS))
    known = type(callee).__hash__ is not None and (callee in MATH or callee in READERS)
    return known or cast_target(callee) is not None


def _arrays(node: ast.AST) -> Names:
    """Names in an expression whose array the result may share.

    Names in an index or a condition don't count, and the result of arithmetic is a number.
    """
    match node:
        case ast.Name(id=name):
            return frozenset((name,))
        case ast.Subscript(value=value):
            return _arrays(value)
        case ast.IfExp(body=first, orelse=second):
            return _arrays(first) | _arrays(second)
        case ast.BinOp() | ast.UnaryOp() | ast.Compare():
            return frozenset()
    return frozenset().union(*(_arrays(child) for child in ast.iter_child_nodes(node)))


def _reached(written: set[str], flows: list[tuple[str, Names]]) -> Names:
    """The written names, and everything that they may refer to."""
    reached = set(written)
    while True:
        more = {source for name, sources in flows if name in reached for source in sources}
        if more <= reached:
            return frozenset(reached)
        reached |= more
