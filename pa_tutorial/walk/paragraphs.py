"""Named things as paragraphs of plain text: cases, and the stories and scenes of the checks.

    exhaustion_in_a_prompt num_blocks=5
    Count what the whole operation needs before you change anything.
        start a 1..5; refused OutOfBlocks start b 30..38  # nine tokens
        start b 1..4 30..33; used = 3

The first line has a name and options, the next ones have sentences. What is indented happens, one
operation after the other: `start a 1..5` calls the method start with "a", 1, 2, 3, 4 and 5, and
`used = 3` calls fact with "used" and 3. A value is a Python literal; any other word is itself.
"""

import re
import shlex
from ast import literal_eval
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any

OPTION = re.compile(r"(\w+)=(.+)")
RANGE = re.compile(r"(\d+)\.\.(\d+)")


@dataclass(frozen=True)
class Operation:
    """A method by its name, and what it is called with."""

    method: str
    arguments: tuple[Any, ...]
    options: dict[str, Any]


@dataclass(frozen=True)
class Paragraph:
    name: str
    options: dict[str, Any]
    sentences: tuple[str, ...]
    operations: tuple[Operation, ...]


def paragraphs(text: str) -> Iterator[Paragraph]:
    """The paragraphs of a text, an empty line between them."""
    for paragraph in text.strip().split("\n\n"):
        first, *lines = paragraph.splitlines()
        name, *words = shlex.split(first)
        _, options = _values(words)
        happens = [line.partition("  #")[0] for line in lines if line.startswith(" ")]
        parts = ";".join(happens).split(";")
        operations = tuple(_operation(part) for part in parts if part.strip())
        sentences = tuple(line for line in lines if not line.startswith(" "))
        yield Paragraph(name, options, sentences, operations)


def _operation(text: str) -> Operation:
    method, *words = shlex.split(text)
    if words[:1] == ["="]:
        method, words = "fact", [method, *words[1:]]
    return Operation(method, *_values(words))


def _values(words: list[str]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Values, and those that have a name: a 1..3 extra=1 are "a", 1, 2, 3 and {"extra": 1}."""
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
