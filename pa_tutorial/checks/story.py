"""What a story is: a few operations on sequences, and what it means if it comes out wrong."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Story:
    """One story, and what it usually means if it comes out wrong.

    tell     what happens, on a World or a ListModel
    options  of the allocator: num_blocks (block 0 is never given out), hash_function
    """

    isolates: str
    meaning: str
    tell: Callable[[Any], None]
    options: dict[str, Any]


STORIES: dict[str, Story] = {}


def story(isolates: str, meaning: str, **options: Any) -> Callable[[Callable], Callable]:
    """Decorator: put a function among the STORIES, under its own name."""

    def add(tell: Callable[[Any], None]) -> Callable[[Any], None]:
        STORIES[tell.__name__] = Story(isolates, meaning, tell, options)
        return tell

    return add


def words(start: int, count: int) -> list[int]:
    return list(range(start, start + count))
