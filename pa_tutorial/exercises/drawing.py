"""Numbers of an exercise: draw 0 has those of the notebook, every other draw has its own."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from pa_tutorial.walk.problem import DecodeProblem

QUESTIONS = 3  # of a case whose answer is one of a few words or sizes


def seeded(seed: int, draw: int) -> np.random.Generator:
    """For draw 0 that of the seed alone; the same arguments give the same numbers anywhere."""
    return np.random.default_rng((draw, seed) if draw else seed)


def seeded_torch(seed: int, draw: int) -> torch.Generator:
    """The same for torch."""
    drawn = int(seeded(seed, draw).integers(2**63)) if draw else seed
    return torch.Generator().manual_seed(drawn)


def reseeded(problem: DecodeProblem, draw: int) -> DecodeProblem:
    """The same case of a decode step with other numbers, in other blocks if these are drawn."""
    return replace(problem, seed=draw) if draw else problem


def new_names(rng: np.random.Generator, first: int, last: int, num_names: int) -> list[int]:
    """Different numbers from first to last - 1: that at place n is the new name of n."""
    return (first + rng.permutation(last - first)[:num_names]).tolist()


def in_other_blocks(slots: Sequence[int], block_size: int, names: Sequence[int]) -> list[int]:
    """The same places in blocks that have new names; a slot of -1 stays."""
    return [s if s < 0 else names[s // block_size] * block_size + s % block_size for s in slots]


def redrawn(
    cases: Sequence[tuple], draw: int, again: Callable[..., tuple[Any, ...]]
) -> list[tuple]:
    """A table of cases with other numbers in it; draw 0 is the table as it stands.

    cases  (name, what it isolates, what its failure means, *numbers) each
    again  again(rng, name, *numbers) -> (what it isolates, *numbers), with numbers that keep the
           property; None for words that are true of the new numbers too
    """
    if not draw:
        return list(cases)
    result = []
    for place, (name, isolates, meaning, *numbers) in enumerate(cases):
        rng = seeded(place, draw)
        words, *new = again(rng, name, *numbers)
        while new == numbers:  # a small choice may hit the numbers of the notebook
            words, *new = again(rng, name, *numbers)
        result.append((name, words or isolates, meaning, *new))
    return result


def asked(
    cases: Sequence[tuple], draw: int, words: Mapping[str, str], again: Callable[..., tuple]
) -> list[tuple]:
    """A table whose answers are one of a few: (name, what it isolates, meaning, questions).

    A question is a tuple of what stands behind the meaning. Draw 0 has the one of the notebook;
    any other draw has several, because one of them is soon guessed.

    words  name -> what the case isolates, where the words of the table name its numbers
    again  again(rng, name, *numbers) -> another question that isolates the same
    """
    result = []
    for place, (name, isolates, meaning, *numbers) in enumerate(cases):
        rng = seeded(place, draw)
        if draw:
            questions = [again(rng, name, *numbers) for _ in range(QUESTIONS)]
            result.append((name, words.get(name, isolates), meaning, questions))
        else:
            result.append((name, isolates, meaning, [tuple(numbers)]))
    return result
