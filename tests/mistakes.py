"""Small mistakes: one token of a line less, or another one in its place."""

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

OTHER_OPERATORS: Mapping[type, tuple[type, ...]] = {
    ast.Add: (ast.Sub,),
    ast.Sub: (ast.Add,),
    ast.Mult: (ast.Add, ast.FloorDiv),
    ast.Div: (ast.Mult,),
    ast.FloorDiv: (ast.Mod,),
    ast.Mod: (ast.FloorDiv,),
    ast.Lt: (ast.LtE, ast.Gt),
    ast.LtE: (ast.Lt, ast.GtE),
    ast.Gt: (ast.GtE, ast.Lt),
    ast.GtE: (ast.Gt, ast.LtE),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.And: (ast.Or,),
    ast.Or: (ast.And,),
    ast.BitAnd: (ast.BitOr,),
    ast.BitOr: (ast.Add,),
}
OTHER_NAMES = {"min": "max", "max": "min", "amax": "amin"}


def mistakes(node: ast.AST) -> Iterator[ast.AST]:
    """What may stand in the place of a node: one token less, or another one."""
    match node:
        case ast.Constant(int() | float() as number) if not isinstance(number, bool):
            yield from (ast.Constant(number + step) for step in (1, -1))
        case ast.Name(id=name) if name in OTHER_NAMES:
            yield ast.Name(OTHER_NAMES[name])
        case ast.Attribute(value=value, attr=name) if name in OTHER_NAMES:
            yield ast.Attribute(value, OTHER_NAMES[name])
        case ast.BinOp(left, op, right):
            others = OTHER_OPERATORS.get(type(op), ())
            yield from (left, right, *(ast.BinOp(left, other(), right) for other in others))
        case ast.BoolOp(op, values):
            others = OTHER_OPERATORS[type(op)]
            yield from (*values, *(ast.BoolOp(other(), values) for other in others))
        case ast.Compare(left, [op], right):
            others = OTHER_OPERATORS.get(type(op), ())
            yield from (ast.Compare(left, [other()], right) for other in others)
        case ast.UnaryOp(_, operand) if not isinstance(operand, ast.Constant):
            yield operand
        case ast.IfExp(_, body, orelse):
            yield from (body, orelse)
        case ast.Call(ast.Name("min" | "max") as function, [_, _, *_] as args):
            for i in range(len(args)):
                yield ast.Call(function, args[:i] + args[i + 1 :], [])
        case ast.Call(ast.Name("range") as function, args):
            for i, arg in enumerate(args):
                for end in off_by_one(arg):
                    yield ast.Call(function, [*args[:i], end, *args[i + 1 :]], [])
        case ast.Slice(lower, upper):
            yield from (ast.Slice(end, upper) for end in off_by_one(lower))
            yield from (ast.Slice(lower, end) for end in off_by_one(upper))
        case ast.If(_, body, orelse):
            yield from (ast.Pass(), ast.If(ast.Constant(True), body, orelse))
        case ast.stmt() if not isinstance(node, ast.Return | ast.FunctionDef):
            yield ast.Pass()


def off_by_one(node: ast.expr | None) -> Iterator[ast.expr]:
    """One more and one less; a constant is changed elsewhere."""
    if node is not None and not isinstance(node, ast.Constant):
        yield from (ast.BinOp(node, op(), ast.Constant(1)) for op in (ast.Add, ast.Sub))


@dataclass(frozen=True)
class Mistake:
    """A piece of one line, and what stands in its place."""

    file: str
    line: int
    before: str  # the whole line
    after: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}\n  - {self.before.strip()}\n  + {self.after.strip()}"

    def planted(self, text: str) -> str | None:
        """The text with the mistake; None if it no longer has the line, or has it twice."""
        lines = text.splitlines(keepends=True)
        if lines[self.line - 1 : self.line] == [self.before]:
            return "".join([*lines[: self.line - 1], self.after, *lines[self.line :]])
        return text.replace(self.before, self.after) if lines.count(self.before) == 1 else None


def mistakes_in(file: str, text: str) -> Iterator[Mistake]:
    """All small mistakes on one line of a function of this file; a few don't parse."""
    lines = text.splitlines(keepends=True)
    functions = [n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.FunctionDef)]
    inside = [node for function in functions for part in function.body for node in ast.walk(part)]
    for node in filter(on_one_line, dict.fromkeys(inside)):  # each once, in the same order always
        line = lines[node.lineno - 1]
        for mistake in mistakes(node):
            new = ast.unparse(ast.fix_missing_locations(mistake))
            new = f"({new})" if isinstance(mistake, ast.BinOp | ast.BoolOp | ast.Compare) else new
            start, end = (len(line.encode()[:n].decode()) for n in position(node)[1:])
            after = line[:start] + new + line[end:]
            yield Mistake(file, node.lineno, line, after)


def on_one_line(node: ast.AST) -> bool:
    return getattr(node, "lineno", 0) == getattr(node, "end_lineno", None)


def position(node: ast.AST) -> tuple[int, int, int]:
    return node.lineno, node.col_offset, node.end_col_offset


def parses(text: str) -> bool:
    try:
        ast.parse(text)
    except SyntaxError:
        return False
    return True
