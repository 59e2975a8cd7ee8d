"""Every public function of the four ground rooms, tried with one table of bad inputs.

Each is refused by the name of its argument and what is allowed, before anything has changed; what
is as good as a right input gives the same answer.
"""

import os
import pickle
import re
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch
from torch import Tensor

from pa_tutorial.attention import cached, full, online, paged, tiny_lm, work
from pa_tutorial.attention.step import DecodeStep
from pa_tutorial.backends import backend_named
from pa_tutorial.engine import LLM, Engine, SamplingParams
from pa_tutorial.engine.sampling import choose_token
from pa_tutorial.kernels.choose import choose
from pa_tutorial.kernels.compiler_report import checked_capability
from pa_tutorial.kernels.geometry import Geometry
from pa_tutorial.kernels.loads import element_loads
from pa_tutorial.kernels.naive import naive_kernel
from pa_tutorial.kernels.paged_attention import paged_attention
from pa_tutorial.kernels.reduce import reduce
from pa_tutorial.kernels.vectors import vector_access
from pa_tutorial.paging import kv_cache, layouts, reservations, waste
from pa_tutorial.paging.allocator import BlockAllocator
from pa_tutorial.paging.block_table import BlockTable, padded_block_tables
from pa_tutorial.paging.errors import PagingError
from pa_tutorial.paging.layouts import PlainLayout, VllmLayout
from pa_tutorial.paging.prefix_cache import PrefixCachingAllocator
from tests.engine.engine_helpers import small_model
from tests.kernels.kernel_inputs import problem

# By the type of the good input: what is refused in its place, and what is as good as it.
NO_NUMBERS = ("3", None, True, np.True_, [3], np.arange(2), torch.ones(2), torch.tensor(True))
BAD = {
    int: (*NO_NUMBERS, 2.5, 3.0, np.float64(3), torch.tensor(3.0), -1, -(10**30)),
    float: (*NO_NUMBERS, float("nan"), float("inf"), torch.tensor(0.5)),
    list: (
        *("12", 3, None, True, 2.5, [1, 2.5], [1.0], [True], ["1"], [None], [[1]], [10**30]),
        *(np.ones(2), np.ones((1, 1), int), torch.ones(2), torch.tensor([True]), torch.tensor(1)),
    ),
    Tensor: (
        *(None, 3, 2.5, True, "text", [1.0], np.ones(2), torch.tensor(1), torch.empty(0)),
        *(torch.ones(1, 1, device="meta"), torch.tensor([True]), torch.ones(1, 1, 1, 1, 1, 1)),
    ),
    object: (None, 3, True, 2.5, "text", [3], np.ones(2), torch.ones(2)),
}
GOOD = {
    int: (np.int64, np.int32, torch.tensor),
    float: (np.float64,),
    list: (np.array, torch.tensor, lambda row: np.array(row[::-1])[::-1], tuple),
    Tensor: (lambda tensor: torch.stack([tensor, tensor], dim=-1)[..., 0],),
    object: (),
}
TOO_LARGE = (10**12, 10**30)


def filled(allocator_class: type = PrefixCachingAllocator) -> BlockTable:
    table = BlockTable(allocator_class(9), 4)
    table.append(range(6))
    return table


def caches(layout_class: type = VllmLayout) -> dict[str, Tensor]:
    layout = layout_class(num_blocks=3, num_kv_heads=1, head_size=8, block_size=4)
    return dict(zip(("k_cache", "v_cache"), map(torch.nan_to_num, layout.empty()), strict=True))


def of_a_cache() -> kv_cache.PagedKVCache:
    return kv_cache.PagedKVCache(LAYOUT, 2)


LAYOUT = VllmLayout(num_blocks=3, num_kv_heads=1, head_size=8, block_size=4)
NEW = {"key": torch.ones(2, 1, 8), "value": torch.ones(2, 1, 8)}
SLOTS = torch.tensor([5, 6])
QKV = {name: torch.ones(3, 2, 8) for name in "qkv"} | {"scale": 0.5}
SIZES = {"num_blocks": 6, "num_kv_heads": 2, "head_size": 8, "block_size": 4}
ROW = {"num_layers": 2, "block_size": 4, "num_kv_heads": 2, "head_size": 8, "itemsize": 2}
MEMORY = {"total_bytes": 90, "utilization": 0.5, "bytes_in_use": 3, "bytes_per_block": 4}
OF_WORK = {"num_new_tokens": 1, "seq_len": 3, "num_heads": 2, "num_kv_heads": 1, "head_size": 8}
OF_A_BATCH = {"block_tables": torch.ones(1, 2).int(), "seq_lens": torch.tensor([4])}
PLACE = {"block": 1, "head": 1, "token": 3, "dim": 5}
PART = online.part_of(torch.ones(2, 3), torch.ones(3, 4))
ENGINE = {"num_blocks": 6, "block_size": 4, "watermark": 1}
LIMITS = {"token_budget": 8, "chunk_size": 4, "max_num_seqs": 2}
GEOMETRY = Geometry(64, 16, partition_size=32)
PARAMS = {"max_tokens": 3, "temperature": 0.5, "top_k": 2, "top_p": 0.5, "seed": 1}
STEP = vars(problem(seq_lens=(9, 4), alibi=True).paged("plain"))
OF_V1 = {"num_threads": 128, "max_seq_len": 20}
BACKEND_SIZES = {
    **dict.fromkeys(("cuda_naive", "cuda_v1", "cuda_v1_vector"), OF_V1),
    "cuda_v2": OF_V1 | {"partition_size": 32},
    "cpu": {"num_shares": 2},
    "triton": {"max_seq_len": 20, "partition_size": 32, "tile_size": 16, "num_warps": 4}
    | {"num_stages": 2},
}


def preparing(name: str) -> Callable:
    backend = backend_named(name)
    return lambda **sizes: backend.prepare(problem().paged(backend.layout), **sizes).out


def engine() -> Engine:
    return Engine(small_model(), **ENGINE)


# What makes the object (None: a function), the function or method, a good call.
CALLS = [
    (None, BlockAllocator, {"num_blocks": 6, "watermark": 1}),
    (None, PrefixCachingAllocator, {"num_blocks": 6, "watermark": 1}),
    *((lambda c=c: filled(c).allocator, name, {"block": 1})
      for c in (BlockAllocator, PrefixCachingAllocator) for name in ("share", "free", "is_shared")),
    (lambda: filled().allocator, "can_allocate", {"num_blocks": 2}),
    (None, partial(BlockTable, BlockAllocator(6)), {"block_size": 4}),
    (filled, "blocks_needed", {"num_tokens": 3}),
    (filled, "look_up", {"token_ids": [1, 2]}),
    (filled, "append", {"token_ids": [1, 2]}),
    (filled, "slide", {"window": 3}),
    (None, padded_block_tables, {"tables": (filled(),), "width": 3}),
    *((None, c, SIZES) for c in (PlainLayout, VllmLayout)),
    *((None, getattr(c(**SIZES), name), PLACE) for c in (PlainLayout, VllmLayout)
      for name in ("k_place", "v_place", "k_element", "v_element")),
    (None, layouts.slot_mapping, {"block_table": [1, 2], "positions": [3], "block_size": 4}),
    *((None, layouts.reshape_and_cache, NEW | caches(c) | {"slot_mapping": SLOTS})
      for c in (PlainLayout, VllmLayout)),
    (None, layouts.gather, caches() | {"block_table": [1, 2], "seq_len": 3}),
    (None, layouts.by_token, caches()),
    (None, lambda layout, num_layers: kv_cache.PagedKVCache(layout, num_layers).num_layers,
     {"layout": LAYOUT, "num_layers": 2}),
    (of_a_cache, lambda cache, pairs: cache.copy_blocks(pairs), {"pairs": ((1, 2),)}),
    (of_a_cache, "write", {"layer": 1} | NEW | {"slot_mapping": SLOTS}),
    (of_a_cache, "read", {"layer": 1, "block_table": [1, 2], "seq_len": 3}),
    (None, reservations.Request, {"prompt_len": 2, "output_len": 3}),
    (None, reservations.long_tailed_requests, {"num_requests": 2, "seed": 3, "max_len": 9}),
    (None, partial(reservations.Contiguous, policy="max"), {"num_slots": 9, "max_len": 5}),
    (None, reservations.Blocks, {"num_slots": 9, "block_size": 4}),
    (None, lambda **given: waste.memory_map_at(memory=reservations.Blocks(9, 4), **given).owner,
     {"step": 2, "requests": (reservations.Request(3, 4),)}),
    (None, waste.bytes_per_block, ROW),
    (None, waste.num_available_blocks, MEMORY),
    (None, lambda **sizes: cached.KVCache(**sizes)._keys,
     {"max_len": 4, "num_kv_heads": 1, "head_size": 8}),
    (lambda: cached.KVCache(4, 1, 8), "append", {"k": NEW["key"], "v": NEW["value"]}),
    (lambda: cached.KVCache(4, 1, 8), "require_room", {"num_new_tokens": 2}),
    *((None, attend, QKV) for attend in (full.causal_attention, full.unmasked_attention,
                                         cached.cached_attention, online.online_attention)),
    (None, online.exps_from, {"scores": torch.ones(2, 3), "m": torch.ones(2, 1)}),
    (None, online.empty_part, {"shape": [2, 3], "head_size": 8}),
    (None, online.part_of, {"qk": torch.ones(2, 3), "v": torch.ones(3, 4)}),
    (None, online.merge, {"one": PART, "other": PART}),
    (None, paged.flatten_queries, OF_A_BATCH | {"query_lens": torch.tensor([2])}),
    (None, lambda **fields: tuple(vars(DecodeStep(**fields)).values()), STEP),
    (None, tiny_lm.TinyConfig, {"num_heads": 4, "num_kv_heads": 2, "head_size": 8, "max_len": 8}),
    (None, small_model(), {"tokens": torch.tensor([1, 2])}),
    (None, small_model().generate, {"prompt": torch.tensor([1, 2]), "num_tokens": 2}),
    (None, partial(work.flops_per_token, small_model(), use_cache=True), {"num_tokens": 2}),
    (None, work.attention_flops_and_bytes, OF_WORK),
    (None, partial(full.repeat_kv_heads, num_heads=2), {"kv": NEW["key"]}),
    (None, partial(full.repeat_kv_heads, NEW["key"]), {"num_heads": 2}),
    (None, tiny_lm.decode, {"tokens": [65, 66]}),
    *((None, partial(choose_token, params=SamplingParams(2, warm), sample=0, num_generated=0),
       {"scores": torch.ones(4)}) for warm in (0.0, 0.5)),
    (None, choose, {"num_seqs": 2, "num_heads": 4, "max_seq_len": 9}),
    (None, Geometry, {"head_size": 64, "block_size": 16, "num_threads": 128}
     | {"partition_size": 32, "num_queries_per_kv": 2}),
    *((lambda: Geometry(64, 16), name, {"lane": 3}) for name in ("value_rows", "value_tokens")),
    (lambda: Geometry(64, 16), "head_elements", {"thread_group_offset": 1}),
    (lambda: Geometry(64, 16), "dynamic_shared_bytes", {"max_seq_len": 20}),
    *((None, lambda geometry, make=make: id(make(geometry)), {"geometry": GEOMETRY})
      for make in (naive_kernel, reduce)),
    (None, lambda geometry, loads: id(paged_attention(geometry, loads)),
     {"geometry": GEOMETRY, "loads": element_loads}),
    (None, lambda count: id(vector_access(count)), {"count": 4}),
    (None, checked_capability, {"capability": (9, 0)}),
    *((None, preparing(name), sizes) for name, sizes in BACKEND_SIZES.items()),
    (None, lambda **sizes: Engine(small_model(), **sizes).scheduler.max_num_seqs, ENGINE | LIMITS),
    (engine, lambda engine, prompt: engine.add(prompt, SamplingParams(2)).prompt,
     {"prompt": [1, 2]}),
    *((engine, lambda engine, **params: engine.add([1], SamplingParams(**params)).params, good)
      for good in (PARAMS, {"num_samples": 2, "stop_tokens": [1, 2]})),
    (lambda: LLM(small_model()), lambda llm, **given: llm.generate([[1]], progress=False, **given),
     {"arrivals": [2]}),
]  # fmt: skip
MAY_BE_NONE = {"width", "max_seq_len", "tile_size", "num_shares", "chunk_size", "arrivals"}
MAY_BE_NONE |= {"alibi_slopes"}


def kinds(table: dict[type, tuple], good: object) -> tuple:
    return next(those for kind, those in table.items() if isinstance(good, kind))


def called(make: Callable | None, name: str | Callable, given: dict) -> tuple[object, Callable]:
    """The object and a call of it, or the arguments and a call of the function."""
    if make is None:
        return given, partial(name, **given)
    thing = make()
    function = partial(name, thing) if callable(name) else getattr(thing, name)
    return thing, partial(function, **given)


def same(one: object, other: object) -> bool:
    if isinstance(one, Tensor):
        return torch.equal(one.nan_to_num(7), other.nan_to_num(7))
    if isinstance(one, tuple):
        return all(map(same, one, other))
    return pickle.dumps(one) == pickle.dumps(other) or one == other


def complaint(make: Callable | None, name: object, given: dict, argument: str) -> str:
    """What is wrong with the refusal of these arguments; nothing if it is as it should be."""
    thing, call = called(make, name, given)
    before = pickle.dumps(thing)
    try:
        result = call()
    except (TypeError, ValueError, MemoryError, PagingError) as error:
        if not re.search(rf"\b{argument}\b.*(must|the pool)", str(error), re.DOTALL):
            return f"says {error}"
        return "" if pickle.dumps(thing) == before else "changed something"
    except Exception as error:
        return f"raises {error!r}"
    return f"gives {result}"


of_every_call = pytest.mark.parametrize(
    ("make", "name", "good"),
    CALLS,
    ids=[f"{i}-{next(iter(good))}" for i, (_, _, good) in enumerate(CALLS)],
)


@of_every_call
def test_bad_inputs_are_refused_by_name_and_good_ones_taken(
    make: Callable | None, name: str | Callable, good: dict
) -> None:
    found = []
    for argument, value in good.items():
        for bad in kinds(BAD, value):
            if bad is not None or argument not in MAY_BE_NONE:
                found.append(
                    (argument, bad, complaint(make, name, good | {argument: bad}, argument))
                )
    assert [one for one in found if one[2]] == []
    for argument, value in good.items():
        for kind in kinds(GOOD, value):
            results = [
                called(make, name, good | {argument: given})[1]() for given in (value, kind(value))
            ]
            assert same(*results), f"{argument}={kind(value)!r}"


@of_every_call
def test_a_size_too_large_means_something_or_is_refused_in_our_words(
    make: Callable | None, name: str | Callable, good: dict
) -> None:
    for argument in [argument for argument, value in good.items() if type(value) is int]:
        for size in TOO_LARGE:
            found = complaint(make, name, good | {argument: size}, argument)
            assert not found.startswith(("raises", "changed")), (argument, found)


@pytest.mark.parametrize("size", [10**9, 10**12])
@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda size: PlainLayout(**SIZES | {"num_blocks": size}).empty(), "num_blocks"),
        (lambda size: BlockAllocator(size), "num_blocks"),
        (lambda size: Engine(small_model(), num_blocks=size), "num_blocks"),
        (lambda size: kv_cache.PagedKVCache(LAYOUT, size), "num_layers"),
        (lambda size: cached.KVCache(size, 1, 8), "max_len"),
        (lambda size: reservations.Blocks(size, 4), "num_slots"),
        (lambda size: reservations.long_tailed_requests(size, 0), "num_requests"),
        (lambda size: padded_block_tables([filled()], size), "width"),
    ],
)
def test_more_than_the_machines_memory_is_refused_with_its_bytes(
    make: Callable, name: str, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sysconf_names", {"SC_PHYS_PAGES": 0}, raising=False)
    monkeypatch.setattr(os, "sysconf", lambda name: 2**15, raising=False)  # 1 GiB in all
    refused = rf"{name} is {size}\b.* takes [\d,]+ bytes; this must be at most 1,073,741,824"
    with pytest.raises((MemoryError, ValueError), match=rf"{refused}|{name} is .* at most 2,147"):
        make(size)
