"""reshape_and_cache and copy_blocks by kernels: tensors are checked, handed over, and written.

In vLLM's layout, caches without gaps. CUDA tensors are written where they are, on torch's current
stream; tensors on the CPU go through the simulator, with every check. The functions named prepare_
give the launches, to be watched or repeated.
"""

from collections import defaultdict
from collections.abc import Sequence

import torch
from torch import Tensor

from pa_tutorial.arguments import require, require_dense, require_readable, require_tensor
from pa_tutorial.kernels.cache import copy_blocks_kernel, reshape_and_cache_kernel
from pa_tutorial.kernels.dtypes import SCALAR_TYPES
from pa_tutorial.kernels.geometry import VEC_BYTES
from pa_tutorial.kernels.prepare import require_aligned_start
from pa_tutorial.kernels.running import Launch, ThreadBlock, flat
from pa_tutorial.paging.kv_cache import Pairs, require_known
from pa_tutorial.paging.layouts import VllmLayout, require_slots, require_tokens

# Threads of a thread block at most, as in vLLM
TOKEN_THREADS = 512
COPY_THREADS = 1024

# The arguments of the kernels, in the order of their signatures.
CACHES = ("k_cache", "v_cache")
NEW_TOKENS = ("key", "value", *CACHES, "slot_mapping", "key_stride", "value_stride")
COPIES = (*CACHES, "pairs")

# New tokens -----------------------------------------------------------------------------------


def reshape_and_cache_by_kernel(
    key: Tensor, value: Tensor, k_cache: Tensor, v_cache: Tensor, slot_mapping: Tensor
) -> None:
    """Write the K and V of new tokens to their slots, in place: reshape_and_cache of
    pa_tutorial.paging.layouts, by vLLM's kernel.

    key, value    [num_tokens, num_kv_heads, head_size]; may be strided over tokens
    k_cache       [num_blocks, num_kv_heads, head_size/x, block_size, x]
    v_cache       [num_blocks, num_kv_heads, head_size, block_size]
    slot_mapping  [num_tokens] int64; -1: this token is not written

    Raises, before anything is written, ValueError as the other function, and for devices, dtypes
    and strides that the kernel cannot take; TypeError for what is no tensor. Slots on a GPU are
    the caller's promise: to check them would be to wait.
    Source: vLLM, reshape_and_cache in csrc/cache_kernels.cu.
    """
    for prepared in prepare_reshape_and_cache(key, value, k_cache, v_cache, slot_mapping):
        prepared.run()


def prepare_reshape_and_cache(
    key: Tensor, value: Tensor, k_cache: Tensor, v_cache: Tensor, slot_mapping: Tensor
) -> list[Launch]:
    """The launch of reshape_and_cache_by_kernel; none without a token."""
    layout = layout_of({"k_cache": k_cache, "v_cache": v_cache})
    tokens = {"key": key, "value": value}
    for name, tensor in (tokens | {"slot_mapping": slot_mapping}).items():
        require_tensor(name, tensor)
        require_device(name, tensor, k_cache.device, "k_cache")
    require_tokens(key, value, k_cache, v_cache, slot_mapping)
    for name, tensor in tokens.items():
        require_dense(name, tensor, 2)
    if slot_mapping.device.type == "cpu":
        require_slots(slot_mapping, layout.num_blocks * layout.block_size)
    if len(slot_mapping) == 0:
        return []
    num_threads = min(layout.num_kv_heads * layout.head_size, TOKEN_THREADS)
    sizes = layout.num_kv_heads, layout.head_size, layout.block_size, layout.x
    kernel = reshape_and_cache_kernel(*sizes, num_threads)
    named = {name: flat(tensor) for name, tensor in tokens.items()} | {
        "k_cache": flat(k_cache),
        "v_cache": flat(v_cache),
        "slot_mapping": slot_mapping,
        "key_stride": key.stride(0),
        "value_stride": value.stride(0),
    }
    block, grid = ThreadBlock(num_threads), (len(slot_mapping), 1, 1)
    return [Launch(kernel, block, grid, 0, named, NEW_TOKENS, k_cache, unwritten=())]


# Blocks ---------------------------------------------------------------------------------------


def copy_blocks(
    k_caches: Sequence[Tensor], v_caches: Sequence[Tensor], pairs: Pairs | Tensor
) -> None:
    """Copy blocks (source, destination), in every layer, one pair after the other:
    PagedKVCache.copy_blocks, by a kernel.

    k_caches, v_caches  for each layer, as in reshape_and_cache_by_kernel
    pairs               pairs of block numbers, or int64 [num_pairs, 2]

    The order counts. A kernel copies all its pairs at once, so they are cut into rounds. Pairs in
    a tensor on a GPU are not looked at, to look would be to wait: they are one round, and it is
    the caller's promise that the blocks exist and that no pair writes what another one reads or
    writes.
    Raises, before anything is copied, UnknownBlock for a block that the pool does not have;
    ValueError for shapes, dtypes, devices, strides and addresses that the kernel cannot take;
    TypeError for what is no tensor.
    Source: vLLM, copy_blocks in csrc/cache_kernels.cu.
    """
    for prepared in prepare_copy_blocks(k_caches, v_caches, pairs):
        prepared.run()


def prepare_copy_blocks(
    k_caches: Sequence[Tensor], v_caches: Sequence[Tensor], pairs: Pairs | Tensor
) -> list[Launch]:
    """The launches of copy_blocks, in their order: for each round, one for each layer."""
    layout = layout_of_layers(k_caches, v_caches)
    numel_per_block = k_caches[0][0].numel()
    block = ThreadBlock(min(numel_per_block // layout.x, COPY_THREADS))
    kernel = copy_blocks_kernel(numel_per_block, layout.x, block.NUM_THREADS)
    launches = []
    for of_round in tables_of_rounds(pairs, layout.num_blocks, k_caches[0].device):
        grid = (len(of_round), 1, 1)
        for k_cache, v_cache in zip(k_caches, v_caches, strict=True):
            named = {"k_cache": flat(k_cache), "v_cache": flat(v_cache), "pairs": of_round}
            launches.append(Launch(kernel, block, grid, 0, named, COPIES, k_cache, unwritten=()))
    return launches


def rounds(pairs: Pairs) -> list[list[tuple[int, int]]]:
    """Pairs cut into as few rounds as can be, so that the pairs of one round may be copied at once.

    Two pairs conflict if one of them writes a block that the other one reads or writes: they stay
    in their order, in different rounds.

        rounds([(1, 2), (2, 3), (4, 5)]) == [[(1, 2), (4, 5)], [(2, 3)]]
    """
    result: list[list[tuple[int, int]]] = []
    read_in: dict[int, int] = defaultdict(lambda: -1)  # block -> the last round that reads it
    written_in: dict[int, int] = defaultdict(lambda: -1)
    for source, destination in pairs:
        number = 1 + max(written_in[source], written_in[destination], read_in[destination])
        if number == len(result):
            result.append([])
        result[number].append((source, destination))
        read_in[source] = max(read_in[source], number)
        written_in[destination] = number
    return result


def tables_of_rounds(pairs: Pairs | Tensor, num_blocks: int, device: torch.device) -> list[Tensor]:
    """For each round [num_pairs, 2] int64, on the device of the caches. Errors: copy_blocks."""
    if not isinstance(pairs, Tensor):
        listed = list(pairs)
        pairs = torch.tensor(listed) if listed else torch.empty(0, 2, dtype=torch.int64)
    is_table = pairs.dtype == torch.int64 and pairs.dim() == 2 and pairs.shape[1] == 2
    found = f"{pairs.dtype} with shape {list(pairs.shape)}"
    require(is_table, "pairs", found, "int64, [num_pairs, 2]")
    if pairs.device.type != "cpu":
        require_device("pairs", pairs, device, "the caches")
        return [pairs] if len(pairs) else []
    listed = pairs.tolist()
    require_known(listed, num_blocks, num_blocks)
    # non_blocking: the numbers are on their way when this returns, and nobody has waited.
    return [torch.tensor(one).to(device, non_blocking=True) for one in rounds(listed)]


# What both can take ---------------------------------------------------------------------------


def layout_of(caches: dict[str, Tensor]) -> VllmLayout:
    """The sizes of K and V of one layer. TypeError or ValueError unless a kernel can write them."""
    (k_name, k_cache), (v_name, v_cache) = caches.items()
    for name, cache in caches.items():
        require_readable(name, cache)
        allowed = f"one of {', '.join(map(str, SCALAR_TYPES))}"
        require(cache.dtype in SCALAR_TYPES, f"{name}.dtype", cache.dtype, allowed)
    require_device(v_name, v_cache, k_cache.device, k_name)
    allowed = f"{k_cache.dtype}, as {k_name}"
    require(v_cache.dtype == k_cache.dtype, f"{v_name}.dtype", v_cache.dtype, allowed)
    require(k_cache.dim() == 5, f"{k_name}.shape", list(k_cache.shape), "of 5 dimensions: vLLM's")
    num_blocks, num_kv_heads, pieces, block_size, x = k_cache.shape
    layout = VllmLayout(num_blocks, num_kv_heads, pieces * x, block_size, k_cache.dtype)
    require(x == layout.x, f"{k_name}.shape[4]", x, f"x = {layout.x}")
    allowed = f"{list(layout.v_shape)}, beside this {k_name}"
    require(v_cache.shape == layout.v_shape, f"{v_name}.shape", list(v_cache.shape), allowed)
    for name, cache in caches.items():
        require_dense(name, cache, cache.dim())
    return layout


def layout_of_layers(k_caches: Sequence[Tensor], v_caches: Sequence[Tensor]) -> VllmLayout:
    """The sizes of all layers, which are the same. Errors: copy_blocks."""
    require(len(k_caches) > 0, "k_caches", "empty", "the caches of one layer or more")
    allowed = f"{len(k_caches)}, as that of k_caches"
    require(len(v_caches) == len(k_caches), "len(v_caches)", len(v_caches), allowed)
    layouts = []
    for layer, (k_cache, v_cache) in enumerate(zip(k_caches, v_caches, strict=True)):
        caches = {f"k_caches[{layer}]": k_cache, f"v_caches[{layer}]": v_cache}
        layouts.append(layout_of(caches))
        same = layouts[-1] == layouts[0]
        require(same, f"k_caches[{layer}]", layouts[-1], f"{layouts[0]}, as k_caches[0]")
        for name, cache in caches.items():
            require_device(name, cache, k_caches[0].device, "k_caches[0]")
            require_aligned_start(name, cache, VEC_BYTES)
    return layouts[0]


def require_device(name: str, tensor: Tensor, device: torch.device, other: str) -> None:
    """Raise ValueError unless the tensor is on this device, where `other` is."""
    require(tensor.device == device, f"{name}.device", tensor.device, f"{device}, as {other}")
