"""The language of stories.txt and scenes.txt: paragraphs of plain text.

    == there are too few blocks, so nothing may change

    exhaustion_in_a_prompt num_blocks=5
    Count what the whole operation needs before you change anything.
        start a 1..5; refused OutOfBlocks start b 30..38  # nine tokens
        start b 1..4 30..33; used = 3

A line that begins with `==` says what the scripts below it isolate. A script's first line has its
name and options; the lines after it say what must hold. The indented lines are operations, carried
out in order: `start a 1..5` calls the method start with "a", 1, 2, 3, 4 and 5, and `used = 3` calls
fact with "used" and 3. A value is a Python literal; any other word is a string.
"""

import re
import shlex
from ast import literal_eval
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

OPTION = re.compile(r"(\w+)=(.+)")
RANGE = re.compile(r"(\d+)\.\.(\d+)")


@dataclass(frozen=True)
class Operation:
    """The name of a method, the arguments to call it with, and how the script says it."""

    method: str
    arguments: tuple[Any, ...]
    options: dict[str, Any]
    text: str


@dataclass(frozen=True)
class Script:
    """A story of the memory manager, or a scene of the engine.

    isolates    neighbours that isolate the same thing share a line in the table of results
    meaning     what must hold; a failure tells the reader to check this first
    operations  methods of PagesAtWork, or of both Served and Alone
    options     of the pool, or of the Engine
    """

    isolates: str
    meaning: str
    operations: tuple[Operation, ...]
    options: dict[str, Any]

    def play(self, side: Any) -> None:
        for one in self.operations:
            getattr(side, one.method)(*one.arguments, **one.options)


def scripts(file: str) -> dict[str, Script]:
    """Name -> script, from a file in this folder. The text before its first `==` is a comment."""
    text = Path(__file__).with_name(file).read_text(encoding="utf-8")
    found: dict[str, Script] = {}
    for group in text.split("\n== ")[1:]:
        isolates, _, paragraphs = group.partition("\n")
        for paragraph in paragraphs.strip().split("\n\n"):
            first, *lines = paragraph.splitlines()
            name, *words = shlex.split(first)
            meaning = " ".join(line for line in lines if not line.startswith(" "))
            happens = ";".join(line.partition("  #")[0] for line in lines if line.startswith(" "))
            operations = tuple(_operation(part) for part in happens.split(";") if part.strip())
            found[name] = Script(isolates, meaning, operations, _values(words)[1])
    return found


def _operation(text: str) -> Operation:
    method, *words = shlex.split(text)
    if words[:1] == ["="]:
        method, words = "fact", [method, *words[1:]]
    return Operation(method, *_values(words), " ".join(text.split()))


def _values(words: list[str]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Positional and named values: a 1..3 extra=1 gives "a", 1, 2, 3 and {"extra": 1}."""
    options = {match[1]: _value(match[2]) for match in map(OPTION.fullmatch, words) if match}
    plain = (word for word in words if not OPTION.fullmatch(word))
    return tuple(chain.from_iterable(map(_numbers, plain))), options


def _numbers(word: str) -> list[Any]:
    ends = RANGE.fullmatch(word)
    return [*range(int(ends[1]), int(ends[2]) + 1)] if ends else [_value(word)]


def _value(word: str) -> Any:
    try:
        return literal_eval(word)
    except (ValueError, SyntaxError):
        return word
