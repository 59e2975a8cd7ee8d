"""A kernel's instructions beside the lines of source that they were compiled from, by .loc."""

import ast
import linecache
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from types import FunctionType

from simt.ptx.parsing import Instruction, Kernel
from simt.source import Source, Unsupported, source_of

NO_TREE = ast.parse("def kernel(): ...").body[0]


def ptx_by_line(kernel: Kernel, file: str) -> dict[int, list[str]]:
    """Line of a source file -> the instructions made of it, in the order of the PTX.

    file  as Python names it: `function.__code__.co_filename`

    Empty if the kernel was compiled without line numbers, or from another file. The long names of
    the kernel's parameters are cut to `param_0` and so on.
    """
    found: dict[int, list[str]] = {}
    for one in kernel.instructions:
        if one.source and one.source[0] == file:
            text = one.text.replace(f"{kernel.name}_param", "param")
            found.setdefault(one.source[1], []).append(text)
    return dict(sorted(found.items()))


def sources_of(
    kernel: Kernel, function: FunctionType | None, accesses: Collection[Instruction]
) -> tuple[Source, ...]:
    """The text of the kernel, then of the functions that were inlined into it. Where an access
    comes from a line that can't be read, also the PTX itself.

    function  of a kernel that Numba compiled
    """
    found: list[Source] = []
    name = function.__name__ if function else kernel.name
    places = {one.source for one in kernel.instructions if one.source}
    if places and function is not None:
        with suppress(Unsupported):  # its text is gone, or has changed
            found.append(source_of(function))
    files: dict[str, set[int]] = {}
    for file, line in places - _lines(found):
        files.setdefault(file, set()).add(line)
    for file in sorted(files):
        found += _functions(file, files[file])
    if {one.source for one in accesses} - _lines(found):
        lines: dict[int, str] = {}
        for one in kernel.instructions:
            lines[one.line] = f"{lines[one.line]}; {one.text}" if one.line in lines else one.text
        every = {number: lines.get(number, "") for number in range(min(lines), max(lines) + 1)}
        found.append(Source(f"PTX of {name}", "PTX", every, NO_TREE))
    return tuple(found)


def _lines(sources: Collection[Source]) -> set[tuple[str, int]]:
    return {(source.file, number) for source in sources for number in source.lines}


def _functions(file: str, numbers: set[int]) -> list[Source]:
    """The innermost functions around some lines; of a file that isn't Python, from the first of
    them to the last. None if the file isn't there."""
    text = dict(enumerate(map(str.rstrip, linecache.getlines(file)), 1))
    try:
        tree = ast.parse("\n".join(text.values()))
    except SyntaxError:
        lines = {n: text.get(n, "") for n in range(min(numbers), max(numbers) + 1)}
        return [Source(Path(file).name, file, lines, NO_TREE)]
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    ranges = {node: range(_first(node), node.end_lineno + 1) for node in nodes}
    around = [[node for node in nodes if number in ranges[node]] for number in sorted(numbers)]
    innermost = dict.fromkeys(max(each, key=_first) for each in around if each)
    return [Source(node.name, file, {n: text[n] for n in ranges[node]}, node) for node in innermost]


def _first(node: ast.FunctionDef) -> int:
    """The line at which Python has a function begin: that of its first decorator."""
    return min(part.lineno for part in (node, *node.decorator_list))
