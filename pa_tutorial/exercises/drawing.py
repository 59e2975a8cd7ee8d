"""Numbers of an exercise: draw 0 has those of the notebook, every other draw has its own."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from pa_tutorial.problem import DecodeProblem


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
