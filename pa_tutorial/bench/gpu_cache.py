"""The cache kernels on a GPU: do they write what the functions in torch write, bit for bit?"""

import itertools

import torch
from torch import Tensor

from pa_tutorial.bench.process_pool import in_a_line
from pa_tutorial.kernels.geometry import BLOCK_SIZES, DTYPES
from pa_tutorial.kernels.launch import copy_blocks, reshape_and_cache_by_kernel
from pa_tutorial.kernels.running import as_stored
from pa_tutorial.paging import layouts
from pa_tutorial.paging.layouts import PAD_SLOT, VllmLayout

NUM_TOKENS, NUM_BLOCKS = 42, 24
# A chain, a block with two copies, an exchange by way of a third: the order counts.
PAIRS = ((1, 2), (2, 3), (4, 5), (4, 6), (7, 8), (9, 7), (8, 9))
SIZES = tuple(itertools.product(DTYPES, (80, 128), BLOCK_SIZES))

Caches = tuple[Tensor, Tensor]


def same(found: Caches, expected: Caches) -> bool:
    """Bit for bit; where nobody has written, both have the same NaN."""
    integer = {4: torch.int32, 2: torch.int16}[found[0].element_size()]
    pairs = zip(found, expected, strict=True)
    return all(torch.equal(a.view(integer), b.view(integer)) for a, b in pairs)


def difference(dtype: torch.dtype, head_size: int, block_size: int, device: str) -> str | None:
    """Which of the two kernels writes something else than torch; None if neither does."""
    layout = VllmLayout(NUM_BLOCKS, 3, head_size, block_size, dtype)
    ours, theirs = (tuple(cache.to(device) for cache in layout.empty()) for _ in range(2))
    qkv = torch.randn(NUM_TOKENS, 9, head_size, device=device).to(dtype)
    key, value = qkv[:, 3:6], qkv[:, 6:]  # views into one tensor, as a model makes them
    slots = torch.randperm(NUM_BLOCKS * block_size)[:NUM_TOKENS]
    slots[::5] = PAD_SLOT
    slots = slots.to(device)
    reshape_and_cache_by_kernel(key, value, *ours, slots)
    layouts.reshape_and_cache(key, value, *theirs, slots)
    if not same(ours, theirs):
        return "reshape_and_cache_by_kernel"
    copy_blocks([ours[0]], [ours[1]], PAIRS)
    for source, destination in PAIRS:
        for cache in theirs:
            as_stored(cache)[destination] = as_stored(cache)[source]
    return None if same(ours, theirs) else "copy_blocks"


def compare(seconds: float, device: str = "cuda") -> dict[str, object]:
    """Every dtype and block size; prints how many are equal, and what is wrong.

    returns  "equal": how many; "wrong"
    """
    wrong = []
    for sizes in SIZES:
        try:
            what = difference(*sizes, device)
        except Exception as error:  # whatever happens there is a line of the report
            what = in_a_line(error)
        if what:
            wrong.append(f"{', '.join(map(str, sizes))}: {what}")
    equal = len(SIZES) - len(wrong)
    print(f"{equal} of {len(SIZES)} sizes: reshape_and_cache and copy_blocks write the same bits")
    for line in wrong:
        print(f"  {line}")
    return {"equal": equal, "wrong": wrong}
