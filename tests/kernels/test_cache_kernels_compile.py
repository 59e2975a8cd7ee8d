"""Numba compiles the cache kernels for real GPUs: without float64, and in wide pieces."""

import math
import re

import pytest
import torch
from numba import types

from pa_tutorial.kernels import cache as kernels
from pa_tutorial.kernels.changed import changed
from pa_tutorial.kernels.compiled import (
    CAPABILITIES,
    STORED,
    Capability,
    Compiled,
    arch,
    array,
    compiled,
)

pytestmark = pytest.mark.needs("numba-cuda")
BUILDS = {  # dtype; num_kv_heads, head_size, block_size
    "reference": (torch.float16, 8, 128, 16),
    "float32": (torch.float32, 2, 80, 8),
    "bfloat16": (torch.bfloat16, 1, 120, 32),
}
by_capability = pytest.mark.parametrize("capability", CAPABILITIES, ids=arch)
by_build = pytest.mark.parametrize("name", BUILDS)


def build(kernel: str, name: str, capability: Capability, *change: str) -> Compiled:
    """The machine code of a kernel; change: a piece of its text, and what replaces it."""
    dtype, *sizes = BUILDS[name]
    numel, x, stored = math.prod(sizes), 16 // dtype.itemsize, array(STORED[dtype])
    factory = getattr(kernels, kernel)
    if change:
        factory = changed(factory, *change)
    if kernel == "copy_blocks_kernel":
        made = factory(numel, x, min(numel // x, 1024))
        return compiled(made, (stored, stored, array(types.int64, 2)), capability)
    made = factory(*sizes, x, min(sizes[0] * sizes[1], 512))
    numbers = array(types.int64), types.int64, types.int64
    return compiled(made, (stored, stored, stored, stored, *numbers), capability)


def complaints(made: Compiled, item_bytes: int) -> list[str]:
    """What is wrong with the code.

    item_bytes  what is read and written at once; slots and block numbers are 8 bytes
    """
    found = []
    if made.num_doubles:
        found.append(f"{made.num_doubles} times .f64: is there a bare 1.0, or uint64 with int64?")
    if made.num_local or made.stack_bytes or made.spill_bytes:
        found.append("local memory")
    loads = {place for place in made.loads if place[0] != "param"}
    if loads != {("global", 8), ("global", item_bytes)}:
        found.append(f"loads: {loads}")
    if stores_of(made.ptx) != {("global", item_bytes)}:
        found.append(f"stores: {stores_of(made.ptx)}")
    return found


def stores_of(ptx: str) -> set[tuple[str, int]]:
    """(space, bytes) of the stores."""
    stores = re.findall(r"\bst\.(\w+)\.(?:v(\d)\.)?[busf](\d+)", ptx)
    return {(space, int(length or 1) * int(bits) // 8) for space, length, bits in stores}


@by_capability
@by_build
def test_tokens_are_moved_element_by_element(name: str, capability: Capability) -> None:
    made = build("reshape_and_cache_kernel", name, capability)
    assert complaints(made, BUILDS[name][0].itemsize) == []


@by_capability
@by_build
def test_blocks_are_moved_16_bytes_at_a_time(name: str, capability: Capability) -> None:
    assert complaints(build("copy_blocks_kernel", name, capability), 16) == []


IN_ONE = "            store(k_cache, destination, load(k_cache, source))\n"
ONE_BY_ONE = """\
            for e in range(VEC_SIZE):
                k_cache[destination + uint64(e)] = k_cache[source + uint64(e)]
"""


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        (IN_ONE, ONE_BY_ONE, ["loads: ", "stores: "]),
        ("source_ptr + i * VEC_SIZE", "source_ptr * 1.0 + i * VEC_SIZE", ["times .f64"]),
    ],
    ids=["elements", "float64"],
)
def test_what_makes_a_copy_slow_is_seen(old: str, new: str, complaint: list[str]) -> None:
    found = complaints(build("copy_blocks_kernel", "reference", (9, 0), old, new), 16)
    assert len(found) == len(complaint)
    assert all(word in one for word, one in zip(complaint, found, strict=True)), found
