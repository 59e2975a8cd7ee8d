"""A student who knows every answer of the notebook by heart, and nothing else."""

import io
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor


class MemorizingStudent:
    """Learns what a function does to the arguments that it sees; then recites it, without it.

    Arguments that the function changes in place are a part of what it does. Numbers that come
    one after another are written down first.
    """

    def __init__(self, solution: Callable[..., Any]) -> None:
        self.solution = solution
        self.known: dict[bytes, tuple[Any, tuple]] = {}

    def learn(self, *args: Any, **named: Any) -> Any:
        args = written_down(args)
        question = as_bytes((args, named))
        result = self.solution(*args, **named)
        self.known[question] = result, args
        return result

    def recite(self, *args: Any, **named: Any) -> Any:
        args = written_down(args)
        result, after = self.known[as_bytes((args, named))]  # KeyError: not in the notebook
        for mine, learnt in zip(args, after, strict=True):
            if isinstance(mine, Tensor):
                mine.copy_(learnt)
            elif isinstance(mine, list):
                mine[:] = learnt
            elif isinstance(mine, dict):
                mine.clear()
                mine.update(learnt)
        return result


def written_down(args: tuple) -> tuple:
    return tuple([float(x) for x in arg] if isinstance(arg, Iterator) else arg for arg in args)


class ByValue(pickle.Pickler):
    """Tensors by their numbers; what cannot be pickled (a callback) by its type."""

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            flat = value.detach().contiguous().view(-1).view(torch.uint8)
            return bytes, (bytes(flat.tolist()) + str((value.shape, value.dtype)).encode(),)
        if callable(value) and not isinstance(value, type | torch.nn.Module):
            return str, (type(value).__name__,)
        return NotImplemented


def as_bytes(args: tuple) -> bytes:
    file = io.BytesIO()
    ByValue(file).dump(args)
    return file.getvalue()
