"""The cache tensors of all layers, and copies between their blocks."""

from collections.abc import Sequence

import torch
from torch import Tensor

from pa_tutorial.arguments import (
    has_order,
    require,
    require_device,
    require_type,
    whole_number,
    whole_numbers,
)
from pa_tutorial.paging.errors import UnknownBlock
from pa_tutorial.paging.layouts import (
    CacheLayout,
    Places,
    checked_scales,
    find_places,
    gather,
    write_to,
)
from pa_tutorial.paging.quantization import FLOAT8, Scale, dequantized

Pairs = Sequence[tuple[int, int]]


class PagedKVCache:
    """k_cache and v_cache of every layer, NaN where there is no token.

    Block b of a sequence is block b in every layer and for every head, so one block table
    serves all of them. (Several tables per sequence pay off where layers need different blocks:
    layers with a sliding window can give back blocks that layers without one still read.)

    device            where the tensors are
    k_scale, v_scale  of an 8-bit cache, the same in all layers: a number, or [num_kv_heads]
    k, v              one tensor per layer, in the given layout
    """

    def __init__(
        self,
        layout: CacheLayout,
        num_layers: int,
        device: torch.device | str = "cpu",
        k_scale: Scale = None,
        v_scale: Scale = None,
    ) -> None:
        require_type(isinstance(layout, CacheLayout), "layout", layout, "a CacheLayout")
        num_layers = whole_number("num_layers", num_layers, least=1)
        require_device(device)
        if torch.device(device).type == "cpu":
            layout.require_memory(num_layers)
        self.layout = layout
        self.k: list[Tensor] = []
        self.v: list[Tensor] = []
        for _ in range(num_layers):
            k_cache, v_cache = layout.empty()
            self.k.append(k_cache.to(device))
            self.v.append(v_cache.to(device))
        self.scales = checked_scales(self.k[0], self.v[0], k_scale, v_scale)

    @property
    def num_layers(self) -> int:
        return len(self.k)

    @property
    def bytes_per_block(self) -> int:
        """K and V of one block in all layers."""
        return self.num_layers * self.layout.bytes_per_block

    def places(self, slot_mapping: Tensor) -> Places:
        """The slots of a step, checked once for all layers. Raises ValueError for a bad one."""
        return find_places(slot_mapping, self.layout.num_blocks, self.layout.block_size)

    def write(self, layer: int, key: Tensor, value: Tensor, slot_mapping: Tensor | Places) -> None:
        """reshape_and_cache in one layer; the same slots, or their places, work for every layer."""
        layer = self._known(layer)
        is_found = isinstance(slot_mapping, tuple)
        places = slot_mapping if is_found else self.places(slot_mapping)
        write_to(key, value, self.k[layer], self.v[layer], places, self.scales)

    def read(self, layer: int, block_table: Tensor, seq_len: int) -> tuple[Tensor, Tensor]:
        """K and V of one sequence, [seq_len, num_kv_heads, head_size]; from an 8-bit cache as
        float32."""
        layer = self._known(layer)
        both = gather(self.k[layer], self.v[layer], block_table, seq_len)
        if self.layout.dtype not in FLOAT8:
            return both
        return tuple(map(dequantized, both, self.scales))

    def _known(self, layer: int) -> int:
        return whole_number("layer", layer, 0, self.num_layers - 1)

    def copy_blocks(self, pairs: Pairs) -> None:
        """Copy blocks (source, destination), in every layer, one pair after the other.

        The order matters: within one step a destination can be the source of a later pair.
        Raises UnknownBlock, before anything is copied.
        Source: vLLM, copy_blocks in csrc/cache_kernels.cu.
        """
        swap_blocks(self, self, pairs)


def require_known(pairs: Pairs, sizes: dict[str, int]) -> None:
    """Raise UnknownBlock unless the pools, "source" and "destination", have every block.

    sizes  number of blocks of each pool
    """
    for index, pair in enumerate(pairs):
        length = len(whole_numbers(f"pairs[{index}]", pair))
        require(length == 2, f"the length of pairs[{index}]", length, "2: source and destination")
        for block, (name, num_blocks) in zip(pair, sizes.items(), strict=True):
            if not 0 <= block < num_blocks:
                raise UnknownBlock(f"{name} block is {block}; the pool has 0 to {num_blocks - 1}")


def swap_blocks(source: PagedKVCache, destination: PagedKVCache, pairs: Pairs) -> None:
    """Copy blocks from one pool to another: from the GPU to the host and back.

    Raises UnknownBlock if a pool has no such block, TypeError or ValueError for anything but pairs
    of block numbers and if the blocks differ in shape, dtype or scales; all before anything is
    copied.
    Source: vLLM, swap_blocks in csrc/cache_kernels.cu.
    """
    for name, pool in (("source", source), ("destination", destination)):
        require_type(isinstance(pool, PagedKVCache), name, pool, "a PagedKVCache")
    shapes = [
        (pool.num_layers, pool.k[0].shape[1:], pool.v[0].shape[1:], pool.layout.dtype)
        for pool in (source, destination)
    ]
    if shapes[0] != shapes[1]:
        raise ValueError(f"destination has blocks of {shapes[1]}; source has {shapes[0]}")
    scales = [[None if s is None else s.tolist() for s in p.scales] for p in (source, destination)]
    require(scales[0] == scales[1], "destination.scales", scales[1], f"{scales[0]}, as source")
    require_type(has_order(pairs), "pairs", pairs, "pairs of block numbers, in their order")
    pairs = list(pairs)
    sizes = {"source": source.layout.num_blocks, "destination": destination.layout.num_blocks}
    require_known(pairs, sizes)
    for old, new in pairs:
        for layer in range(source.num_layers):
            destination.k[layer][new] = source.k[layer][old]
            destination.v[layer][new] = source.v[layer][old]
