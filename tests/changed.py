"""The kernel with a piece of its text replaced: to see what a line is good for."""

import inspect
from collections.abc import Callable
from itertools import count
from types import ModuleType

from pa_tutorial.text_changes import Change, compiled

NUMBERS = count(1)


def changed(factory: Callable, old: str, new: str = "") -> Callable:
    """A factory of kernels, made from the text of its module with one piece replaced.

    old  is in the module's text exactly once: see Change

    Raises ValueError if it isn't.

        wrong = changed(paged_attention, "red_smem[NUM_WARPS:]", "red_smem")
    """
    module = inspect.getmodule(factory)
    text = Change(module.__name__, old, new).made_in(inspect.getsource(module))
    copy = ModuleType(module.__name__)
    exec(compiled(text, f"<{module.__name__}, changed, {next(NUMBERS)}>"), copy.__dict__)
    return getattr(copy, factory.__name__)
