"""What a scene is: a few requests to an engine, and what it means if it comes out wrong."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Scene:
    """One scene, and what it usually means if it comes out wrong.

    play     what happens, on a Served or an Alone
    options  of the Engine
    """

    isolates: str
    meaning: str
    play: Callable[[Any], None]
    options: dict[str, Any]


SCENES: dict[str, Scene] = {}


def scene(isolates: str, meaning: str, **options: Any) -> Callable[[Callable], Callable]:
    """Decorator: put a function among the SCENES, under its own name."""

    def add(play: Callable[[Any], None]) -> Callable[[Any], None]:
        SCENES[play.__name__] = Scene(isolates, meaning, play, options)
        return play

    return add
