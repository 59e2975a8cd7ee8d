"""Other numbers for the exercises of notebook 13: lengths to deal out, arguments of exp."""

import numpy as np


def other_lens(rng: np.random.Generator, name: str, sizes: tuple) -> tuple[str | None, tuple]:
    """For a case of deal_out: what it isolates (None: as it was), and its sizes."""
    _, block_size, num_shares = sizes
    a, b, c, d = (int(n) for n in rng.integers(1, 5, 4))
    if name == "cut_inside":  # the middle of all blocks is in the second sequence
        lens = [block_size * n for n in (a, 8 + b, c)]
    elif name == "cut_between":
        lens = [block_size * n for n in (a, b, a + b)]
    elif name == "tails":
        lens = [block_size * n + 1 for n in (a, 0, b + c, d)]
    elif name == "long_and_short":
        lens = [a, int(rng.integers(300, 500)), 2 * b, c]
    else:  # many_shares
        lens, num_shares = [block_size * a + b, c], int(rng.integers(7, 11))
    return None, (tuple(map(int, lens)), block_size, num_shares)


def other_x(rng: np.random.Generator, name: str) -> np.ndarray:
    """For a case of exp_of_many: [n] float64."""
    few = int(rng.integers(5, 20))
    if name == "zero":
        return rng.choice((0.0, -0.0), few)
    if name == "near_zero":
        return rng.uniform(-0.34, 0, 50)
    if name == "wide":
        return rng.uniform(-87, 0, 1000)
    if name == "below":
        return -(10 ** rng.uniform(2, 30, few))
    return rng.permutation(np.append(rng.uniform(-10, 0, few), [-np.inf] * few))  # empty_slots
