"""Where a token's K and V are stored: cache layouts, addresses, slots, and writing to them.

Two layouts, for one layer of the model:

    vLLM   k_cache [num_blocks, num_kv_heads, head_size/x, block_size, x]
           v_cache [num_blocks, num_kv_heads, head_size, block_size]
    plain  k_cache, v_cache [num_blocks, num_kv_heads, block_size, head_size]

x = 16 / itemsize, the number of elements in a 16-byte load: 4, 8, or 16 for an 8-bit cache.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import ClassVar

import torch
from torch import Tensor

from pa_tutorial.arguments import (
    as_row,
    require,
    require_below,
    require_dtype,
    require_memory,
    require_shape,
    require_tensor,
    whole_number,
)
from pa_tutorial.paging.quantization import FLOAT8, Scale, checked_scale, quantized

# The head sizes that vLLM compiles its kernels for.
HEAD_SIZES = (32, 64, 80, 96, 112, 120, 128, 192, 256)
BLOCK_SIZES = (8, 16, 32)
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
# A token with this slot is not written.
PAD_SLOT = -1
MAX_BLOCKS = 2**31  # block numbers are int32
# slot_mapping; the tokens it writes (None: all); their blocks and offsets
Places = tuple[Tensor, Tensor | None, Tensor, Tensor]


@dataclass(frozen=True)
class CacheLayout:
    """The sizes of a cache, and the places in it. Use VllmLayout or PlainLayout.

    A place is an index into the tensor; an element is the same place as one number, counted
    from the start of the memory. Times dtype.itemsize, it is the address in bytes.
    """

    name: ClassVar[str]

    num_blocks: int
    num_kv_heads: int
    head_size: int
    block_size: int
    dtype: torch.dtype = torch.float32

    def __post_init__(self) -> None:
        for name in ("num_blocks", "num_kv_heads", "head_size", "block_size"):
            object.__setattr__(self, name, whole_number(name, getattr(self, name), least=1))
        require_dtype(self.dtype)
        allowed = f"a multiple of x = 16 / itemsize, which is {self.x} for {self.dtype}"
        require(self.head_size % self.x == 0, "head_size", self.head_size, allowed)

    @property
    def x(self) -> int:
        """Elements in 16 bytes of the cache."""
        return 16 // self.dtype.itemsize

    @property
    def bytes_per_block(self) -> int:
        """K and V of one block in one layer."""
        return 2 * prod(self.k_shape[1:]) * self.dtype.itemsize

    def empty(self) -> tuple[Tensor, Tensor]:
        """k_cache and v_cache, filled with NaN, so that reading a place without a token shows.

        Raises MemoryError, before allocating anything, for more bytes than the machine has.
        """
        self.require_memory(num_layers=1)
        k_cache, v_cache = (
            torch.full(shape, float("nan"), dtype=self.dtype)
            for shape in (self.k_shape, self.v_shape)
        )
        return k_cache, v_cache

    def require_memory(self, num_layers: int) -> None:
        """Raise MemoryError if the caches of this many layers need more memory than there is."""
        sizes = {name: size for name, size in vars(self).items() if name != "dtype"}
        num_bytes = num_layers * self.num_blocks * self.bytes_per_block
        require_memory(num_bytes, **sizes, num_layers=num_layers)

    @property
    def k_shape(self) -> tuple[int, ...]:
        raise NotImplementedError

    @property
    def v_shape(self) -> tuple[int, ...]:
        raise NotImplementedError

    def k_place(self, block: int, head: int, token: int, dim: int) -> tuple[int, ...]:
        """Index into k_cache; `token` is the offset in the block.

        Like the three below, it raises TypeError or ValueError for a place outside the cache.
        """
        return self._k_place(*self._known(block, head, token, dim))

    def v_place(self, block: int, head: int, token: int, dim: int) -> tuple[int, ...]:
        """Index into v_cache."""
        return self._v_place(*self._known(block, head, token, dim))

    def k_element(self, block: int, head: int, token: int, dim: int) -> int:
        """The same place as one number, as a kernel computes it."""
        return self._k_element(*self._known(block, head, token, dim))

    def v_element(self, block: int, head: int, token: int, dim: int) -> int:
        return self._v_element(*self._known(block, head, token, dim))

    def _known(self, *place: int) -> tuple[int, ...]:
        """block, head, token and dim, each checked to be inside this cache."""
        ends = self.num_blocks, self.num_kv_heads, self.block_size, self.head_size
        named = zip(("block", "head", "token", "dim"), place, ends, strict=True)
        return tuple(whole_number(name, value, 0, end - 1) for name, value, end in named)


class VllmLayout(CacheLayout):
    """K is split by x, so that neighbouring threads read neighbouring 16 bytes; V is transposed,
    so that one load brings several tokens of one dimension.

    Source: vLLM, reshape_and_cache_kernel in csrc/cache_kernels.cu.
    """

    name = "vllm"

    @property
    def k_shape(self) -> tuple[int, ...]:
        return (
            self.num_blocks,
            self.num_kv_heads,
            self.head_size // self.x,
            self.block_size,
            self.x,
        )

    @property
    def v_shape(self) -> tuple[int, ...]:
        return (self.num_blocks, self.num_kv_heads, self.head_size, self.block_size)

    def _k_place(self, block: int, head: int, token: int, dim: int) -> tuple[int, ...]:
        return (block, head, dim // self.x, token, dim % self.x)

    def _v_place(self, block: int, head: int, token: int, dim: int) -> tuple[int, ...]:
        return (block, head, dim, token)

    def _k_element(self, block: int, head: int, token: int, dim: int) -> int:
        return (
            block * self.num_kv_heads * self.head_size * self.block_size
            + head * self.head_size * self.block_size
            + dim // self.x * self.block_size * self.x
            + token * self.x
            + dim % self.x
        )

    def _v_element(self, block: int, head: int, token: int, dim: int) -> int:
        return (
            block * self.num_kv_heads * self.head_size * self.block_size
            + head * self.head_size * self.block_size
            + dim * self.block_size
            + token
        )


class PlainLayout(CacheLayout):
    """Token after token, in K and V alike; easy to read."""

    name = "plain"

    @property
    def k_shape(self) -> tuple[int, ...]:
        return (self.num_blocks, self.num_kv_heads, self.block_size, self.head_size)

    @property
    def v_shape(self) -> tuple[int, ...]:
        return self.k_shape

    def _k_place(self, block: int, head: int, token: int, dim: int) -> tuple[int, ...]:
        return (block, head, token, dim)

    def _v_place(self, block: int, head: int, token: int, dim: int) -> tuple[int, ...]:
        return (block, head, token, dim)

    def _k_element(self, block: int, head: int, token: int, dim: int) -> int:
        return (
            block * self.num_kv_heads * self.block_size * self.head_size
            + head * self.block_size * self.head_size
            + token * self.head_size
            + dim
        )

    def _v_element(self, block: int, head: int, token: int, dim: int) -> int:
        return self._k_element(block, head, token, dim)


LAYOUTS: dict[str, type[CacheLayout]] = {"vllm": VllmLayout, "plain": PlainLayout}


def require_caches(k_cache: Tensor, v_cache: Tensor) -> tuple[int, int, int, int]:
    """num_blocks, num_kv_heads, block_size and head_size of a cache in either layout.

    The shape of k_cache tells the layout. Raises ValueError if v_cache doesn't match it.
    """
    for name, cache in (("k_cache", k_cache), ("v_cache", v_cache)):
        require_tensor(name, cache)
    must = "it must have 5 dimensions (vLLM) or 4 (plain)"
    require_shape(k_cache.dim() in (4, 5), "k_cache", k_cache, must)
    vllm = k_cache.dim() == 5
    num_blocks, num_kv_heads, *rest = k_cache.shape
    head_size, block_size = (rest[0] * rest[2], rest[1]) if vllm else (rest[1], rest[0])
    v_shape = [num_blocks, num_kv_heads, *([head_size, block_size] if vllm else rest)]
    given, must = f"{list(v_cache.shape)}, {v_cache.dtype}", f"{v_shape}, {k_cache.dtype}"
    if given != must:
        raise ValueError(f"v_cache is {given}; with this k_cache it must be {must}")
    return num_blocks, num_kv_heads, block_size, head_size


def by_token(k_cache: Tensor, v_cache: Tensor) -> tuple[Tensor, Tensor]:
    """Views of the same memory with block and offset first, whatever the layout.

    returns  K [num_blocks, block_size, num_kv_heads, …] with head_size (plain) or
             head_size/x, x (vLLM) at the end; V [num_blocks, block_size, num_kv_heads, head_size]

    The shape of k_cache tells the layout. Raises ValueError if v_cache doesn't match it.
    """
    require_caches(k_cache, v_cache)
    if k_cache.dim() == 5:
        return k_cache.permute(0, 3, 1, 2, 4), v_cache.permute(0, 3, 1, 2)
    return k_cache.transpose(1, 2), v_cache.transpose(1, 2)


def slot_mapping(
    block_table: Sequence[int] | Tensor, positions: Sequence[int] | Tensor, block_size: int
) -> Tensor:
    """The slot in the cache for each token of one sequence.

    block_table  [max_num_blocks]  physical block numbers
    positions    [num_tokens]      0-based; many at prefill, only the last one at decode
    returns      [num_tokens] int64, slot = block number * block_size + offset

    Raises TypeError or ValueError for anything but one row of whole numbers each, if a position is
    negative or past the end of the table, or if a block number that is needed is negative.
    Source: vLLM, compute_slot_mapping in vllm/attention/backends/utils.py.
    """
    block_size = whole_number("block_size", block_size, 1, MAX_BLOCKS - 1)
    table, positions = as_row("block_table", block_table), as_row("positions", positions)
    require(
        len(table) or not len(positions), "block_table", [], "a row with a block for each token"
    )
    require_below("positions", positions, len(table) * block_size)
    blocks = table[positions // block_size]
    # -1 would give slot -1, and the token wouldn't be written
    require_below("block_table", blocks, MAX_BLOCKS, "names block")
    return blocks * block_size + positions % block_size


def require_tokens(
    key: Tensor, value: Tensor, k_cache: Tensor, v_cache: Tensor, slot_mapping: Tensor
) -> None:
    """Raise TypeError or ValueError unless shapes, dtypes and devices suit reshape_and_cache, and
    the caches can be written in place."""
    dtypes, cached = (k_cache.dtype,), f"{k_cache.dtype}, as k_cache"
    if k_cache.dtype in FLOAT8:
        dtypes, cached = DTYPES, f"one of {', '.join(map(str, DTYPES))}"
    _, v_tokens = by_token(k_cache, v_cache)
    expected = [len(slot_mapping), *v_tokens.shape[2:]]
    for name, tensor in (("key", key), ("value", value)):
        require_tensor(name, tensor)
        must = f"with this cache and slot_mapping it must be {expected}"
        require_shape(list(tensor.shape) == expected, name, tensor, must)
        require(tensor.dtype in dtypes, name, tensor.dtype, cached)
        device, allowed = tensor.device, f"{k_cache.device}, as k_cache"
        require(device == k_cache.device, f"{name}.device", device, allowed)
    for name, cache in (("k_cache", k_cache), ("v_cache", v_cache)):
        require(not cache.requires_grad, f"{name}.requires_grad", True, "False: it is overwritten")
        may_write = torch.is_inference_mode_enabled() or not cache.is_inference()
        require(may_write, name, "of torch.inference_mode", "a tensor that can change outside it")
        sizes = zip(cache.shape, cache.stride(), strict=True)
        overlaps = any(size > 1 and stride == 0 for size, stride in sizes)
        require(not overlaps, f"{name}.stride()", cache.stride(), "one place for each element")


def require_slots(slot_mapping: Tensor, num_slots: int) -> None:
    """Raise TypeError or ValueError unless each token has a different slot of the pool, or none."""
    require_tensor("slot_mapping", slot_mapping)
    given = f"{slot_mapping.dtype} with shape {list(slot_mapping.shape)}"
    is_row = slot_mapping.dim() == 1 and slot_mapping.dtype == torch.int64
    require(is_row, "slot_mapping", given, "int64, [num_tokens]")
    slots = slot_mapping[slot_mapping != PAD_SLOT]
    outside = slots[(slots < 0) | (slots >= num_slots)]
    if len(outside):
        raise ValueError(
            f"slot_mapping holds {outside[0]}; it must be {PAD_SLOT}, or 0 to {num_slots - 1}"
        )
    if len(slots.unique()) < len(slots):
        raise ValueError("slot_mapping holds a slot twice; each token needs a different one")


def reshape_and_cache(
    key: Tensor,
    value: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    slot_mapping: Tensor,
    k_scale: Scale = None,
    v_scale: Scale = None,
) -> None:
    """Write the K and V of new tokens to their slots, in place, in either layout.

    key, value        [num_tokens, num_kv_heads, head_size], in the dtype of the cache; for an 8-bit
                      cache float32, float16 or bfloat16
    slot_mapping      [num_tokens] int64; -1 skips the token (padding, or already in the cache)
    k_scale, v_scale  of an 8-bit cache, which stores number / scale: a number, or [num_kv_heads]

    The cache holds numbers only: gradients of key and value end here.
    Raises TypeError or ValueError, before anything is written, unless each is a tensor with a
    matching shape and dtype, every slot is in the pool, and no two tokens have the same slot.
    Source: vLLM, reshape_and_cache in csrc/cache_kernels.cu.
    """
    num_blocks, _, block_size, _ = require_caches(k_cache, v_cache)
    places = find_places(slot_mapping, num_blocks, block_size)
    scales = checked_scales(k_cache, v_cache, k_scale, v_scale)
    write_to(key, value, k_cache, v_cache, places, scales)


def checked_scales(
    k_cache: Tensor, v_cache: Tensor, k_scale: Scale, v_scale: Scale
) -> tuple[Tensor | None, Tensor | None]:
    """Both as checked_scale returns them. Raises as it does."""
    _, num_kv_heads, _, _ = require_caches(k_cache, v_cache)
    return (
        checked_scale("k_scale", k_scale, num_kv_heads, k_cache),
        checked_scale("v_scale", v_scale, num_kv_heads, v_cache),
    )


def find_places(slot_mapping: Tensor, num_blocks: int, block_size: int) -> Places:
    """Where a step writes its tokens, in every layer. Raises as require_slots."""
    require_slots(slot_mapping, num_blocks * block_size)
    written = None if (slot_mapping >= 0).all() else slot_mapping >= 0
    slots = slot_mapping if written is None else slot_mapping[written]
    return slot_mapping, written, slots // block_size, slots % block_size


def write_to(
    key: Tensor,
    value: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    places: Places,
    scales: tuple[Tensor | None, Tensor | None],
) -> None:
    """reshape_and_cache to places from find_places, with the scales of K and V."""
    slot_mapping, written, *place = places  # the place: blocks, offsets
    require_tokens(key, value, k_cache, v_cache, slot_mapping)
    for new, tokens, scale in zip((key, value), by_token(k_cache, v_cache), scales, strict=True):
        new = new.detach() if written is None else new.detach()[written]
        new = new if scale is None else quantized(new, scale, tokens.dtype)
        # [tokens, num_kv_heads, head_size], for vLLM's K cut into pieces of x
        tokens[tuple(place)] = new.reshape(-1, *tokens.shape[2:])


def gather(
    k_cache: Tensor, v_cache: Tensor, block_table: Tensor, seq_len: int
) -> tuple[Tensor, Tensor]:
    """K and V of one sequence, copied out of its blocks; the inverse of reshape_and_cache. (From
    an 8-bit cache as stored: PagedKVCache.read multiplies by the scales.)

    block_table  [max_num_blocks_per_seq]
    returns      K, V [seq_len, num_kv_heads, head_size]

    Raises ValueError if the table is too short for seq_len, or names a block outside the pool.
    """
    k_tokens, v_tokens = by_token(k_cache, v_cache)
    num_blocks, block_size = v_tokens.shape[:2]
    block_table = as_row("block_table", block_table)
    seq_len = whole_number("seq_len", seq_len, 0, len(block_table) * block_size)
    used = block_table[: -(-seq_len // block_size)]
    require_below("block_table", used, num_blocks, "names block")
    slots = slot_mapping(used, torch.arange(seq_len), block_size)
    place = (slots // block_size, slots % block_size)
    return k_tokens[place].flatten(2), v_tokens[place]
