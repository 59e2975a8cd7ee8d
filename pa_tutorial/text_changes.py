"""Our own code with pieces of its text replaced: wrong examples, wrong answers, an assignment.

A TOML file holds versions of code, each in a table:

    [alibi_sign]                     # its name; [[name]] where a name has several versions
    why = "one sentence: what is wrong, and what it does to the result"
    file = "attention/cached.py"     # or once for all versions, at the top of the TOML file
    function = "cached_attention"    # optional: look only in this function
    mark = "scores"                  # optional: look only in the statement after `# mark: scores`
    old = "slopes * distance"        # one line of code, or part of one; must occur exactly once
    new = "-slopes * distance"

Spaces, line breaks and comments between the words of `old` don't matter. If `new` has several
lines, they are indented like the line that they begin in. With a mark, `old = ""` is the whole
statement. An `old` of several lines must match exactly, and its `new` is used unchanged.

To make several changes in one version, use several tables [[alibi_sign.change]]. A table may hold
more for the code that loads it, for example what must find the mistake.
"""

import ast
import linecache
import re
import tokenize
import tomllib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields
from io import StringIO
from itertools import accumulate
from pathlib import Path
from textwrap import dedent
from types import CodeType
from typing import Any


@dataclass(frozen=True)
class Change:
    """A piece of the text of a file, and what replaces it. The fields are as in a table."""

    file: str
    old: str
    new: str
    function: str = ""
    mark: str = ""

    def made_in(self, text: str) -> str:
        """The text with the change. Raises ValueError unless its place occurs exactly once."""
        is_exact = "\n" in self.old
        searched = text if is_exact else without_comments(text)
        first, last = self._lines(text)
        line_starts = [0, *accumulate(len(line) for line in text.splitlines(keepends=True))]
        found = pattern_of(self.old).finditer(searched, line_starts[first - 1], line_starts[last])
        start, end = self._only("old", [match.span() for match in found])
        new = self.new if is_exact else indented(self.new, text, start)
        return text[:start] + new + text[end:]

    def _lines(self, text: str) -> tuple[int, int]:
        """The first and the last line in which to look, counted from 1."""
        first, last = 1, len(text.splitlines())
        if not self.function and not self.mark:
            return first, last
        nodes = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.stmt)]
        if self.function:
            functions = [node for node in nodes if isinstance(node, ast.FunctionDef)]
            named = [node for node in functions if node.name == self.function]
            function = self._only("function", named)
            first, last = function.lineno, function.end_lineno
        if self.mark:
            lines = enumerate(text.splitlines(), start=1)
            marks = [number for number, line in lines if line.strip() == f"# mark: {self.mark}"]
            mark = self._only("mark", [number for number in marks if first <= number <= last])
            after = min((node for node in nodes if node.lineno > mark), key=lambda n: n.lineno)
            first, last = after.lineno, after.end_lineno
        return first, last

    def _only(self, name: str, found: list[Any]) -> Any:
        if len(found) != 1:
            place = {key: getattr(self, key) for key in ("file", "function", "mark", "old")}
            told = "; ".join(f"{key}: {value}" for key, value in place.items() if value)
            raise ValueError(f"`{name}` must be there once, it is there {len(found)} times; {told}")
        return found[0]


def pattern_of(old: str) -> re.Pattern[str]:
    """What `old` matches: see the top of this file."""
    if "\n" in old:
        return re.compile(re.escape(old))
    if not old:
        return re.compile(r"\S(?:.*\S)?", re.DOTALL)
    words, signs = r"\w+", r"[^\w\s]"
    tokens = re.findall(f"{words}|{signs}", old)
    return re.compile(
        r"\s*".join(re.escape(t) if re.match(signs, t) else rf"\b{t}\b" for t in tokens)
    )


def indented(new: str, text: str, start: int) -> str:
    """`new` with its further lines indented like the line of the character `start`."""
    line = text[text.rfind("\n", 0, start) + 1 :]
    spaces = line[: len(line) - len(line.lstrip())]
    return dedent(new).strip().replace("\n", "\n" + spaces)


def without_comments(text: str) -> str:
    """The text with spaces in place of its comments, so that everything else stays in place."""
    lines = text.splitlines(keepends=True)
    for token in tokenize.generate_tokens(StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            row, column = token.start
            before, after = lines[row - 1][:column], lines[row - 1][token.end[1] :]
            lines[row - 1] = before + " " * len(token.string) + after
    return "".join(lines)


@dataclass(frozen=True)
class Version:
    """What a table says; `more` is what else it holds."""

    name: str
    why: str
    changes: tuple[Change, ...]
    more: dict[str, Any] = field(default_factory=dict, hash=False)


def load_versions(path: Path) -> tuple[Version, ...]:
    """The versions of a TOML file, in order."""
    tables = tomllib.loads(path.read_text(encoding="utf-8"))
    file = tables.pop("file", "")
    return tuple(
        _version(name, {"file": file} | table)
        for name, entry in tables.items()
        for table in (entry if isinstance(entry, list) else [entry])
    )


def _version(name: str, table: dict[str, Any]) -> Version:
    why, changes = table.pop("why"), table.pop("change", [{}])
    common = {f.name: table.pop(f.name) for f in fields(Change) if f.name in table}
    changes = tuple(Change(**common | change) for change in changes)
    return Version(name, why, changes, table)


def changed_texts(changes: Iterable[Change], read: Callable[[str], str]) -> dict[str, str]:
    """File -> its text with the changes made, one after the other; `read` gives a file's text."""
    texts: dict[str, str] = {}
    for change in changes:
        file = change.file
        texts[file] = change.made_in(texts[file] if file in texts else read(file))
    return texts


def compiled(text: str, file: str) -> CodeType:
    """The code of a text that needn't be in a file; inspect finds it by the name `file`.

    The simulator reads the source of a kernel. linecache looks on the disk only for an entry with
    a time, so here the time is None.
    """
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    return compile(text, file, "exec")
