"""Numbers of an exercise: draw 0 has those of the notebook, every other draw has its own."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from pa_tutorial.checks.problem import DecodeProblem


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
