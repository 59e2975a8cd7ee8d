"""What no stage does: write an 8-bit cache. Wrong examples are tried on it too.

A trial says what is wrong with the pa_tutorial that can be imported when it runs; "" for nothing.
"""

import importlib
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

CACHE_WRITES = "cache_writes"  # what tests/wrong/ calls them

# Multiples of a scale of 4 and what is read of them, in float8_e5m2 with its largest number 57,344.
EXACT = torch.tensor([0.0, 1, -1.75, 0.5, 1024, -57344, 2**-16, 3])
TOO_LARGE = torch.tensor([57345.0, 65504, 1e6, 1e30, torch.inf, -61440, -1e9, -torch.inf])


def read_back(numbers: Tensor, expected: Tensor) -> str:
    """Whether a token written by reshape_and_cache with these multiples of its scale is read as
    expected."""
    layouts = importlib.import_module("pa_tutorial.paging.layouts")
    cache = torch.zeros(2, 1, 4, len(numbers)).to(torch.float8_e5m2)
    caches, token = (cache, cache.clone()), (4 * numbers)[None, None]
    layouts.reshape_and_cache(token, token, *caches, torch.tensor([5]), 4.0, 4.0)
    for name, written in zip(("k_cache", "v_cache"), caches, strict=True):
        found = written[1, 0, 1].float()
        if not torch.equal(found, expected):
            return f"{name} has {found.tolist()}; it must have {expected.tolist()}"
    return ""


TRIALS: dict[str, Callable[[], str]] = {
    "representable_numbers": partial(read_back, EXACT, EXACT),
    "numbers_past_the_largest": partial(read_back, TOO_LARGE, 57344 * TOO_LARGE.sign()),
}
