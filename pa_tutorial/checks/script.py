"""What a story and a scene are: what happens, what must hold, and what it means if it does not."""

from dataclasses import dataclass
from typing import Any

from pa_tutorial.walk.paragraphs import Operation, paragraphs


@dataclass(frozen=True)
class Script:
    """A story of the memory manager, or a scene of the engine.

    isolates    neighbours that isolate the same share a row in the table of results
    meaning     what it usually means if it comes out wrong
    operations  methods of both sides: of World and ListModel, or of Served and Alone
    options     of the allocator, or of the Engine
    """

    isolates: str
    meaning: str
    operations: tuple[Operation, ...]
    options: dict[str, Any]

    def play(self, side: Any) -> None:
        for one in self.operations:
            getattr(side, one.method)(*one.arguments, **one.options)


def scripts(text: str) -> dict[str, Script]:
    """Name -> script, from groups of paragraphs (see walk/paragraphs.py).

    A group begins with a line `== what its scripts isolate`.
    """
    found: dict[str, Script] = {}
    for group in text.split("\n== ")[1:]:
        isolates, _, own = group.partition("\n")
        for one in paragraphs(own):
            meaning = " ".join(one.sentences)
            found[one.name] = Script(isolates, meaning, one.operations, one.options)
    return found
