"""Other numbers for the exercise of notebook 23: lengths to deal out."""

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
