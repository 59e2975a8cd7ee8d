"""A cache of rows that serve as K and as V, for all heads: the plain layout with one KV head."""

import torch
from torch import Tensor

from pa_tutorial.paging.layouts import reshape_and_cache


def latent_cache(
    num_blocks: int, block_size: int, row_size: int, dtype: torch.dtype = torch.float32
) -> Tensor:
    """[num_blocks, 1, block_size, row_size], filled with NaN; one tensor for K and V."""
    return torch.full((num_blocks, 1, block_size, row_size), float("nan"), dtype=dtype)


def write_rows(rows: Tensor, cache: Tensor, slots: Tensor) -> None:
    """Put the rows of new tokens into their slots; -1 skips.

    rows   [num_tokens, latent_size + rope_size]
    slots  [num_tokens] int64

    Raises ValueError as reshape_and_cache does.
    """
    reshape_and_cache(rows[:, None], rows[:, None], cache, cache, slots)
