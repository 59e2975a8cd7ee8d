"""One line of code with a mistake: how wrong answers and wrong examples are made."""

import ast
import re
import tokenize
from io import StringIO
from textwrap import dedent


def with_changed_line(text: str, old: str, new: str, function: str = "", mark: str = "") -> str:
    """The text with `new` in the place of `old`.

    old       a line of code or a piece of one; spaces, line breaks and comments don't matter
    new       "", "pass" or other code; if it has several lines, all are indented like the first
    function  look only in functions of this name
    mark      look only after `# mark: …`

    Raises ValueError unless old is there exactly once.
    """
    code, allowed = without_comments(text), lines_to_search(text, function, mark)
    spans = [match.span() for match in pattern_of(old).finditer(code)]
    found = [(start, end) for start, end in spans if text.count("\n", 0, start) in allowed]
    if len(found) != 1:
        place = {"old": old, "function": function, "mark": mark}
        told = "; ".join(f"{name}: {value}" for name, value in place.items() if value)
        raise ValueError(f"`old` must be there once, it is there {len(found)} times; {told}")
    ((start, end),) = found
    spaces = re.match(" *", text[text.rfind("\n", 0, start) + 1 :])[0]
    return text[:start] + dedent(new).strip().replace("\n", "\n" + spaces) + text[end:]


def without_comments(text: str) -> str:
    """The text with spaces in the place of its comments."""
    lines = text.splitlines(keepends=True)
    for token in tokenize.generate_tokens(StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            row, column = token.start
            comment = " " * len(token.string)
            lines[row - 1] = lines[row - 1][:column] + comment + lines[row - 1][token.end[1] :]
    return "".join(lines)


def lines_to_search(text: str, function: str, mark: str) -> set[int]:
    """Numbers of lines, counted from 0."""
    lines = text.splitlines()
    numbers = set(range(len(lines)))
    if function:
        named = [node for node in ast.walk(ast.parse(text)) if is_function(node, function)]
        numbers = {number for node in named for number in range(node.lineno - 1, node.end_lineno)}
    if mark:
        marks = [number for number in numbers if lines[number].strip() == f"# mark: {mark}"]
        numbers = {number for number in numbers if marks and number > min(marks)}
    return numbers


def is_function(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.FunctionDef) and node.name == name


def pattern_of(old: str) -> re.Pattern[str]:
    """What `old` matches: its words and signs, with any space between them."""
    tokens = re.findall(r"\w+|[^\w\s]", old)
    return re.compile(
        r"\s*".join(rf"\b{t}\b" if re.match(r"\w", t) else re.escape(t) for t in tokens)
    )
