"""Blanks of notebook 20: names of full blocks, finding, sharing and evicting them, what is left."""

from collections.abc import Callable, Sequence
from copy import deepcopy
from itertools import chain, combinations
from string import ascii_uppercase
from types import ModuleType

import numpy as np
import torch
from torch import Tensor

from pa_tutorial.checks.calls import AnswerError
from pa_tutorial.checks.running import Trial
from pa_tutorial.exercises.grading import axes_of_calls, called, graded, results_of
from pa_tutorial.exercises.pools_at_work import (
    costs,
    other_blocks,
    our_pages,
    played,
    plural,
    pool_after,
)

# Names --------------------------------------------------------------------------------------------
# name, what it isolates, what its failure means, block_size, texts
TEXTS: tuple[tuple, ...] = (
    ("BE NICE. WHO? and BE NICE. WHY?", "tails", "", 4, ("BE NICE. WHO?", "BE NICE. WHY?")),
    ("ROSEBUSH, WILDBUSH, ROSEHIPS", "parents", "", 4, ("ROSEBUSH", "WILDBUSH", "ROSEHIPS")),
    ("short prompts", "no full block", "", 4, ("WHO", "WHY", "")),
    ("a grandparent", "three blocks", "", 2, ("ABCDEF", "XYCDEF", "CDEF")),
    ("repeats", "one block after another like it", "", 3, ("ABCABCABC", "ABCABC")),
)


def other_letters(rng: np.random.Generator, _: str, size: int, texts: tuple[str, ...]) -> tuple:
    """Every letter becomes another, so what was equal is equal."""
    shuffled = "".join(rng.permutation([*ascii_uppercase]))
    table = str.maketrans(ascii_uppercase, shuffled)
    return None, size, tuple(text.translate(table) for text in texts)


def run_names(pages: ModuleType, size: int, texts: tuple[str, ...]) -> Tensor:
    found = {text: called(pages.block_names, [*text.encode()], size) for text in texts}
    known: dict[str, str] = {}  # what a block and all before it hold -> its name
    for text, names in found.items():
        full = len(text) // size
        if not isinstance(names, list) or len(names) != full:
            has = plural(full, "full block")
            raise AnswerError(f'"{text}" has {has} of {size} tokens; its names are {names}')
        for number, name in enumerate(names, 1):
            upto = text[: number * size]
            if known.setdefault(upto, name) != name:
                raise AnswerError(f'"{upto}" ends with block {known[upto]}, and with block {name}')
    for (one, name), (other, same) in combinations(known.items(), 2):
        if name == same:
            both = f'"{one[-size:]}" after "{one[:-size]}" and "{other[-size:]}"'
            raise AnswerError(f'{both} after "{other[:-size]}" have the same name, {name}')
    total, different = sum(map(len, found.values())), len({*known.values()})
    return torch.tensor([total, different, len({*chain(*found.values())})])


def two_numbers(size: int, texts: tuple[str, ...]) -> Tensor:
    return all_beginnings(size, texts)[:2]


def all_beginnings(size: int, texts: tuple[str, ...]) -> Tensor:
    ends = [text[:end] for text in texts for end in range(size, len(text) + 1, size)]
    return torch.tensor([len(ends), len({*ends}), len({*ends})])


# Finding ------------------------------------------------------------------------------------------
# name, what it isolates, what its failure means, the pool's names, those of a prompt
KNOWN: tuple[tuple, ...] = (
    ("two of three names known", "", "", {"x": 4, "y": 2, "z": 5}, ["x", "y", "w"]),
    ("the first name unknown", "a later one is known", "", {"y": 2, "z": 5}, ["x", "y", "z"]),
    ("a gap", "the second is unknown", "", {"x": 4, "z": 5}, ["x", "y", "z"]),
    ("all names known", "", "", {"x": 4, "y": 2, "z": 5}, ["x", "y", "z"]),
    ("no name", "a prompt without a full block", "", {"x": 4}, []),
)


def other_numbers(rng: np.random.Generator, _: str, named: dict, names: list[str]) -> tuple:
    blocks = rng.permutation(range(1, 100)).tolist()
    return None, dict(zip(named, blocks, strict=False)), names


def run_known(pages: ModuleType, named: dict[str, int], names: list[str]) -> Tensor:
    pool = pages.CachingPool(100, 4)
    pool.named = dict(named)
    in_use = [*named.values()][1:]  # and the first is free
    for block in in_use:
        pages.share(pool, block)
    before = deepcopy(vars(pool))
    found, (*right, _, _) = pages.known_blocks(pool, [*names]), first_of_them(named, names).tolist()
    if pool.named != named:
        raise AnswerError(f"the pool's names were {named}; they now are {pool.named}")
    if found != right:
        unknown = [name for name in names if name not in named]
        where = f"{unknown[0]!r} isn't known" if unknown else "every name is known"
        words = f"the names are {names}, and {where}: {right}, not {found}"
        state = "" if {*right} <= {*found} else f". In use are {in_use}; free ones can be found too"
        raise AnswerError(words + state)
    if vars(pool) != before:
        raise AnswerError("it changed the pool's reference counts or its free list; it only looks")
    return torch.tensor([*found, len(pool.named), sum(pool.ref_counts)])


def blocks_of_them(named: dict[str, int], names: list[str]) -> Tensor:
    return first_of_them(named, names)[:-2]


def first_of_them(named: dict[str, int], names: list[str]) -> Tensor:
    """Those blocks; how many names the pool still has, and how many readers of blocks."""
    lengths = [n for n in range(len(names) + 1) if {*names[:n]} <= named.keys()]
    found = [named[name] for name in names[: max(lengths)]]
    return torch.tensor([*found, len(named), len(named) - 1])


# Pools --------------------------------------------------------------------------------------------
# Here a block's name is its text.
# name, …, block_size, sequences, the free list, operations, names

ENDED = {"BE N": 1, "ICE.": 2}
HELD = {"a": ("BE NICE. WHO", [1, 2, 3])}

SHARE = (
    (
        "b shares two free blocks",
        "free blocks", "", 4, {"b": ("", [])}, [3, 4, 2, 1], ("share b BE N", "share b ICE."),
        ENDED,
    ),
    (
        "b shares blocks that a has",
        "blocks in use", "", 4, HELD | {"b": ("", [])}, [5, 4], ("share b BE N", "share b ICE."),
        ENDED,
    ),
    (
        "b shares a free block, and c too",
        "free, then in use", "", 4, {"b": ("", []), "c": ("", [])}, [2, 3, 1],
        ("share b BE N", "share c BE N"), ENDED,
    ),
)  # fmt: skip
TAKE = (
    (
        "b takes two blocks",
        "the order", "", 4, {"b": ("", [])}, [3, 4, 2, 1], ("take b GO A", "take b WAY."), ENDED,
    ),
    ("b takes a named block", "a name", "", 4, {"b": ("", [])}, [2, 3, 1], ("take b GO A",), ENDED),
    (
        "b takes blocks while a has named ones",
        "the names of others", "", 4, HELD | {"b": ("", [])}, [5, 4], ("take b GO A",),
        ENDED | {" WHO": 3},
    ),
)  # fmt: skip


def on_pools(cases: tuple[tuple, ...]) -> Callable[[int], list[Trial]]:
    options = {"drawn": pool_after, "costs": costs}
    return graded(cases, played, our_pages, ("number",), again=other_blocks, **options)


# What is left -------------------------------------------------------------------------------------
# name, what it isolates, what its failure means, num_tokens, num_known, block_size
LEFT: tuple[tuple, ...] = (
    ("13 tokens, 2 known blocks of 4", "a tail", "", 13, 2, 4),
    ("8 tokens, 2 known blocks of 4", "every block is known", "", 8, 2, 4),
    ("4 tokens, 1 known block of 4", "one block, and it is known", "", 4, 1, 4),
    ("9 tokens, 2 known blocks of 4", "only the last token isn't known", "", 9, 2, 4),
    ("3 tokens, none known", "no full block", "", 3, 0, 4),
    ("64 tokens, 1 known block of 16", "most are unknown", "", 64, 1, 16),
)


def longer(rng: np.random.Generator, _: str, num_tokens: int, num_known: int, size: int) -> tuple:
    more = int(rng.integers(1, 100))  # blocks, all of them known
    return None, num_tokens + more * size, num_known + more, size


def run_left(pages: ModuleType, *numbers: int) -> Tensor:
    return results_of(pages.left_to_compute, [numbers])


def axes_of_left(*numbers: int) -> tuple[str]:
    return axes_of_calls("left_to_compute", [numbers])


def one_by_one(num_tokens: int, num_known: int, size: int) -> Tensor:
    """Leave blocks away until a token is left to compute."""
    while num_known and num_known * size >= num_tokens:
        num_known -= 1
    return torch.tensor([num_tokens - num_known * size])


NAMES = ("number of names|number of different beginnings|number of different names",)
GOAL = ("number of names|number of different names",)
CASES: dict[str, Callable[[int], list[Trial]]] = {
    "block_names": graded(
        TEXTS, run_names, all_beginnings, NAMES, again=other_letters, goal=(two_numbers, GOAL)
    ),
    "known_blocks": graded(
        KNOWN,
        run_known,
        first_of_them,
        ("block",),
        again=other_numbers,
        goal=(blocks_of_them, ("block",)),
    ),
    "share": on_pools(SHARE),
    "take_block": on_pools(TAKE),
    "left_to_compute": graded(LEFT, run_left, one_by_one, axes_of_left, again=longer),
}
EXERCISES: Sequence = ()
