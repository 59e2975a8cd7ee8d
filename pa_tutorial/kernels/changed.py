"""The kernel with a piece of its text replaced: to see what a line is good for."""

import inspect
import linecache
from collections.abc import Callable
from itertools import count
from types import ModuleType

NUMBERS = count(1)


def changed(factory: Callable, old: str, new: str = "") -> Callable:
    """A factory of kernels, made from the text of its module with one piece replaced.

    old  stands in the module's text exactly once; comments and indentation count

    Raises ValueError if it does not.

        wrong = changed(paged_attention, "red_smem[NUM_WARPS:]", "red_smem")
    """
    module = inspect.getmodule(factory)
    source = inspect.getsource(module)
    times = source.count(old)
    if times != 1:
        raise ValueError(f"old must stand in {module.__name__} once, it stands there {times} times")
    source = source.replace(old, new)
    # where inspect looks for the text: the simulator reads the source of a kernel
    file = f"<{module.__name__}, changed, {next(NUMBERS)}>"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    copy = ModuleType(module.__name__)
    exec(compile(source, file, "exec"), copy.__dict__)
    return getattr(copy, factory.__name__)
