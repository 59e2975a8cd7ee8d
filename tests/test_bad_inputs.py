"""Every public function of five rooms, tried with one table of bad inputs.

Each is refused by the name of its argument and what is allowed, before anything has changed; what
is as good as a right input gives the same answer. A function without an entry fails the last test.
"""

import copyreg
import importlib
import inspect
import os
import pickle
import re
from collections.abc import Callable, Iterator, Set
from dataclasses import is_dataclass
from fnmatch import fnmatch
from functools import partial
from importlib.util import find_spec
from pathlib import Path, PurePath
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from numba import cuda
from torch import Tensor

import pa_tutorial
from pa_tutorial.attention import cached, full, online, paged, tiny_lm, work
from pa_tutorial.attention.step import DecodeStep, QuantizedStep
from pa_tutorial.checks.ladder import backend_named
from pa_tutorial.distributed import paper
from pa_tutorial.engine import LLM, Engine, SamplingParams
from pa_tutorial.engine.runner import Runner
from pa_tutorial.engine.tokenizer import ByteTokenizer
from pa_tutorial.kernels.geometry import Geometry
from pa_tutorial.kernels.intermediates import MARKS, NAMES
from pa_tutorial.paging import kv_cache, layouts, quantization, reservations, waste
from pa_tutorial.paging.allocator import BlockAllocator
from pa_tutorial.paging.block_pages import BlockPages
from pa_tutorial.paging.block_table import BlockTable
from pa_tutorial.paging.errors import PagingError
from pa_tutorial.paging.layouts import PlainLayout, VllmLayout
from pa_tutorial.paging.pages import padded
from pa_tutorial.paging.prefix_cache import PrefixCachingAllocator
from tests.engine.engine_helpers import small_model
from tests.kernels.kernel_inputs import problem


def public() -> Iterator[tuple[str, Callable]]:
    """The functions, classes and methods of the rooms that check what they are given."""
    rooms = Path(pa_tutorial.__file__).parent
    for path in sorted(p for room in ROOMS for p in (rooms / room).rglob("[!_]*.py")):
        if path.parent.name == "triton" and find_spec("triton") is None:
            continue
        place = path.relative_to(rooms).with_suffix("").parts
        module = importlib.import_module(".".join(("pa_tutorial", *place)))
        own = [x for x in vars(module).values() if getattr(x, "__module__", "") == module.__name__]
        methods = [x for one in own if inspect.isclass(one) for x in vars(one).values()]
        for one in (*own, *methods):
            is_record = is_dataclass(one) and not hasattr(one, "__post_init__")
            checks = inspect.isclass(one) and "__init__" in vars(one) and not is_record
            if (checks or inspect.isfunction(one)) and not one.__name__.startswith("_"):
                yield f"{in_its_room(module.__name__)}.{one.__qualname__}", one


def in_its_room(module: str) -> str:
    """A module of a room, such as "layouts" or "cpu.backend"."""
    return ".".join(module.split(".")[2:])


ROOMS = ("paging", "attention", "kernels", "engine", "distributed")
OURS = dict(public())

# By the type of the good input: what is refused in its place, and what is as good as it.
NO_NUMBERS = ("3", None, True, np.True_, [3], np.arange(2), torch.ones(2), torch.tensor(True))
NO_NUMBERS += ({3}, 3j, torch.tensor([3]), torch.tensor(3, device="meta"), 10**400)
NO_NUMBERS += (torch.tensor(3).to_sparse(),)
BAD = {
    bool: (None, 0, 1.0, "no", "", [], {True}, np.ones(1), torch.tensor(True), 10**400),
    int: (*NO_NUMBERS, 2.5, 3.0, np.float64(3), torch.tensor(3.0), -1, -(10**30)),
    float: (*NO_NUMBERS, float("nan"), float("inf"), torch.tensor(0.5)),
    list: (
        *({1, 2}, frozenset({1}), {1: 2}, [torch.tensor([1])], [10**400]),
        *(torch.tensor([1, 2], device="meta"), torch.tensor([1, 0]).to_sparse()),
        *("12", 3, None, True, 2.5, [1, 2.5], [1.0], [True], ["1"], [None], [[1]], [10**30]),
        *(np.ones(2), np.ones((1, 1), int), torch.ones(2), torch.tensor([True]), torch.tensor(1)),
    ),
    torch.nn.Parameter: (None, 3, True, 2.5, "text", [3], np.ones(2)),
    Tensor: (
        *(None, 3, 2.5, True, "text", [1.0], np.ones(2), torch.tensor(1), torch.empty(0)),
        *(torch.ones(1, 1, device="meta"), torch.tensor([True]), torch.ones(1, 1, 1, 1, 1, 1)),
    ),
    torch.dtype: (None, 3, True, 2.5, "float16", np.float16, [3], np.ones(2), torch.int8),
    torch.device: (None, 3, True, 2.5, "text", [3], np.ones(2), "meta", "cuda:99"),
    PurePath: (None, 3, True, 2.5, [3], np.ones(2), torch.ones(2), Path("no/file")),
    str: (None, 3, True, 2.5, b"text", [3], np.ones(2), torch.ones(2)),
    object: (None, 3, True, 2.5, "text", [3], np.ones(2), torch.ones(2)),
}
GOOD = {
    bool: (np.bool_,),
    int: (np.int64, np.int32, torch.tensor),
    float: (np.float64,),
    list: (np.array, torch.tensor, lambda row: np.array(row[::-1])[::-1], tuple),
    torch.nn.Parameter: (),
    Tensor: (lambda tensor: torch.stack([tensor, tensor], dim=-1)[..., 0],),
    object: (),
}
# Some functions take these; no other may fail in another library's words.
EXTREMES = {int: (0, 10**12, 10**30), list: ([], (), np.array([], int), torch.tensor([]).long())}


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
ANY_TENSOR = torch.nn.Parameter(torch.ones(2))  # for an argument that takes any shape
CPU, FLOAT = torch.device("cpu"), torch.float32
SERVED = {"requests": (reservations.Request(3, 4),), "memory": reservations.Blocks(9, 4)}
POOL = {"num_blocks": 6, "block_size": 4, "watermark": 1, "prefix_caching": True}
NARROW = {"kv_cache_dtype": None}
LIMITS = {"token_budget": 8, "chunk_size": 4, "max_num_seqs": 2}
WARM = {"scores": torch.ones(4), "params": SamplingParams(2, 0.5)}
DRAWN = {"sample": 0, "num_generated": 0}
PARAMS = {"max_tokens": 3, "temperature": 0.5, "top_k": 2, "top_p": 0.5, "seed": 1}
PARAMS |= {"ignore_eos": True}
STEP = vars(problem(seq_lens=(9, 4), alibi=True).paged("plain"))
VLLM_STEP = vars(problem(seq_lens=(9, 4), alibi=True).paged("vllm"))
E4M3 = torch.float8_e4m3fn
QUANTIZED = {"cache_dtype": E4M3, "k_scale": (0.5, 2.0), "v_scale": (2.0, 0.5)}
QUANTIZED = {layout: problem(alibi=True, **QUANTIZED).paged(layout) for layout in layouts.LAYOUTS}
QUANTIZED_STEP = {name: value for name, value in vars(QUANTIZED["plain"]).items()
                  if name not in ("k_scale", "v_scale")}  # fmt: skip
WATCHED = backend_named("cuda_v1").prepare(problem().paged("vllm"))
WATCHED = WATCHED.watched(MARKS, NAMES)
OF_WATCHED = {"report": WATCHED, "seq_lens": torch.tensor([20, 9])}
OF_V1 = {"num_threads": 128, "max_seq_len": 20}
BACKEND_SIZES = {
    **dict.fromkeys(("cuda_naive", "cuda_v1", "cuda_v1_vector"), OF_V1),
    "cuda_v2": OF_V1 | {"partition_size": 32},
    "cpu": {"num_shares": 2},
    **{"paged_gather": {}, "paged_online": {}},
    "triton": {"max_seq_len": 20, "partition_size": 32, "tile_size": 16, "num_warps": 4}
    | {"num_stages": 2},
}


def engine() -> Engine:
    return Engine(small_model(), BlockPages(**POOL))


def planned(one: Engine | None = None) -> list:
    """What an engine's next step computes."""
    one = one or engine()
    one.add([1, 2, 3], SamplingParams(2))
    return one.scheduler.schedule()


@cuda.jit
def nothing():
    pass


def of_triton() -> Iterator[tuple]:
    call = backend_named("triton").prepare(problem().paged("plain")).partitions
    copyreg.pickle(type(call.kernel), lambda kernel: (str, (kernel.__name__,)))
    values, of_call = call.arguments | call.constants, {"kernel": call.kernel, "grid": (1, 1, 1)}
    yield None, OURS["triton.backend.paged_attention_triton"], STEP
    yield None, OURS["triton.backend.call_of"], of_call | {"values": values}
    yield None, partial(OURS["triton.interpreter.interpret"], **values), of_call
    compiled = {"capability": (9, 0)}
    yield None, OURS["triton.compiled.compile_call"], {"call": call} | compiled
    yield None, OURS["triton.compiled.num_compilations"], {"calls": (call,)} | compiled


# What makes the object (None: a function), the function or method, a good call.
PLANNER = engine()
PLAN = planned(PLANNER)
CALLS = [
    (None, BlockAllocator, {"num_blocks": 6, "watermark": 1}),
    (None, PrefixCachingAllocator, {"num_blocks": 6, "watermark": 1}),
    *((lambda c=c: filled(c).allocator, name, {"block": 1})
      for c in (BlockAllocator, PrefixCachingAllocator) for name in ("share", "free", "is_shared")),
    (lambda: filled().allocator, "can_allocate", {"num_blocks": 2}),
    (None, BlockTable, {"allocator": BlockAllocator(6), "block_size": 4}),
    (filled, "move_to", {"allocator": BlockAllocator(6)}),
    (filled, "look_up", {"token_ids": [1, 2]}),
    (filled, "append", {"token_ids": [1, 2]}),
    (filled, "slide", {"window": 3}),
    (None, partial(padded, [[2, 1]]), {"width": 3}),
    (None, BlockPages, POOL),
    (None, partial(LLM, small_model()), POOL),
    (None, partial(LLM, small_model()), {"pages": BlockPages(**POOL)}),
    *((lambda: BlockPages(**POOL), name, {"token_ids": [1, 2]})
      for name in ("admit", partial(BlockPages.append, name="a"),
                   partial(BlockPages.num_found, name="a"))),
    *((None, c, SIZES | {"dtype": FLOAT}) for c in (PlainLayout, VllmLayout)),
    *((None, getattr(c(**SIZES), name), PLACE) for c in (PlainLayout, VllmLayout)
      for name in ("k_place", "v_place", "k_element", "v_element")),
    (None, layouts.slot_mapping, {"block_table": [1, 2], "positions": [3], "block_size": 4}),
    *((None, layouts.reshape_and_cache, NEW | caches(c) | {"slot_mapping": SLOTS})
      for c in (PlainLayout, VllmLayout)),
    (None, layouts.gather, caches() | {"block_table": [1, 2], "seq_len": 3}),
    (None, layouts.by_token, caches()),
    (None, kv_cache.PagedKVCache, {"layout": LAYOUT, "num_layers": 2, "device": CPU}),
    (of_a_cache, "copy_blocks", {"pairs": ((1, 2),)}),
    (of_a_cache, "places", {"slot_mapping": SLOTS}),
    (None, kv_cache.swap_blocks,
     {"source": of_a_cache(), "destination": of_a_cache(), "pairs": ((1, 2),)}),
    (of_a_cache, "write", {"layer": 1} | NEW | {"slot_mapping": SLOTS}),
    (of_a_cache, "read", {"layer": 1, "block_table": [1, 2], "seq_len": 3}),
    (None, reservations.Request, {"prompt_len": 2, "output_len": 3}),
    (None, reservations.long_tailed_requests, {"num_requests": 2, "seed": 3, "max_len": 9}),
    (None, reservations.Contiguous, {"num_slots": 9, "policy": "max", "max_len": 5}),
    (None, reservations.Blocks, {"num_slots": 9, "block_size": 4}),
    (None, waste.memory_map_at, {"step": 2} | SERVED),
    *((None, function, SERVED) for function in (waste.Server, waste.simulate)),
    (None, waste.bytes_per_block, ROW),
    (None, waste.num_available_blocks, MEMORY),
    (None, cached.KVCache, {"max_len": 4, "num_kv_heads": 1, "head_size": 8, "dtype": FLOAT}),
    (lambda: cached.KVCache(4, 1, 8), "append", {"k": NEW["key"], "v": NEW["value"]}),
    (lambda: cached.KVCache(4, 1, 8), "require_room", {"num_new_tokens": 2}),
    (None, full.unmasked_attention, QKV),
    *((None, attend, QKV | {"alibi_slopes": torch.ones(2)}) for attend in
      (full.causal_attention, cached.cached_attention, online.online_attention)),
    (None, online.exps_from, {"scores": torch.ones(2, 3), "m": torch.ones(2, 1)}),
    (None, online.empty_part, {"shape": [2, 3], "head_size": 8, "like": ANY_TENSOR}),
    (None, online.part_of, {"qk": torch.ones(2, 3), "v": torch.ones(3, 4)}),
    (None, online.merge, {"one": PART, "other": PART}),
    (None, paged.flatten_queries, OF_A_BATCH | {"query_lens": torch.tensor([2])}),
    *((None, attend, STEP) for attend in
      (DecodeStep, paged.paged_gather, paged.paged_online,
       OURS["cpu.backend.paged_attention_cpu"])),
    *((None, OURS[f"launch.paged_attention_{version}"], VLLM_STEP)
      for version in ("v1", "v1_vector", "v2")),
    (None, QuantizedStep, QUANTIZED_STEP),
    (lambda: DecodeStep(**STEP), "longest", {"max_seq_len": 9}),
    (None, tiny_lm.TinyConfig, {"num_layers": 1, "num_heads": 4, "num_kv_heads": 2, "head_size": 8}
     | {"max_len": 8, "mlp_ratio": 2, "vocab_size": 16, "alibi": True}),
    (None, tiny_lm.TinyLM, {"config": tiny_lm.TinyConfig()}),
    (small_model, "forward", {"tokens": torch.tensor([1, 2])}
     | {"attention": cached.cached_attention}),
    (None, tiny_lm.encode, {"text": "text"}),
    (None, tiny_lm.save, {"model": small_model(), "path": Path("model.pt")}),
    (None, tiny_lm.load, {"path": tiny_lm.WEIGHTS}),
    (None, small_model().generate,
     {"prompt": torch.tensor([1, 2]), "num_tokens": 2, "use_cache": True}),
    (None, work.flops_per_token, {"model": small_model(), "num_tokens": 2, "use_cache": True}),
    (None, work.attention_flops_and_bytes, OF_WORK | {"dtype": FLOAT}),
    (None, full.repeat_kv_heads, {"kv": NEW["key"], "num_heads": 2}),
    (None, tiny_lm.decode, {"tokens": [65, 66]}),
    *((None, OURS["sampling.choose_token"], WARM | DRAWN | {"params": SamplingParams(2, warm)})
      for warm in (0.0, 0.5)),
    (None, OURS["sampling.probabilities"], WARM),
    (None, OURS["sampling.random_number"], {"seed": 3} | DRAWN),
    (None, OURS["choose.choose"], {"num_seqs": 2, "num_heads": 4, "max_seq_len": 9}),
    (None, Geometry, {"head_size": 64, "block_size": 16, "dtype": FLOAT, "num_threads": 128}
     | {"partition_size": 32, "num_queries_per_kv": 2, "cache_dtype": E4M3}),
    *((lambda: Geometry(64, 16), name, {"lane": 3}) for name in ("value_rows", "value_tokens")),
    (lambda: Geometry(64, 16), "head_elements", {"thread_group_offset": 1}),
    (lambda: Geometry(64, 16), "dynamic_shared_bytes", {"max_seq_len": 20}),
    (None, OURS["cuda_backends.geometry_of"],
     {"step": problem().paged("vllm"), "num_threads": 128, "partition_size": 32}),
    (None, OURS["cuda_launch.as_stored"], {"tensor": ANY_TENSOR}),
    (None, OURS["intermediates.intermediates"], {"geometry": Geometry(32, 16)} | OF_WATCHED),
    (None, partial(OURS["intermediates.scores"], where=MARKS[0], name=NAMES[0]), OF_WATCHED),
    (None, OURS["compiled.report.compiled"], {"kernel": nothing, "capability": (9, 0)}),
    (None, OURS["compiled.report.assembly"], {"kernel": nothing}),
    (None, OURS["compiled.report.made_of"], {"kernel": nothing, "what": "no such line"}),
    (None, OURS["compiled.report.compared"], {"kernels": {"nothing": nothing}, "num_threads": 128}),
    *(of_triton() if find_spec("triton") else ()),
    (None, OURS["vectors.vector_access"], {"count": 4}),
    *((None, backend_named(name).prepare, {"step": problem().paged(backend_named(name).layout)}
       | sizes) for name, sizes in BACKEND_SIZES.items()),
    (None, Engine, {"model": small_model(), "pages": BlockPages(**POOL)} | NARROW | LIMITS
     | {"backend": paged.online_backend}),
    (engine, "add", {"prompt": [1, 2], "params": SamplingParams(2)}),
    (engine, "cancel", {"request": planned()[0].sequence.request}),
    (None, OURS["batch.build_batch"], {"plan": tuple(PLAN), "pages": PLANNER.pages}),
    (lambda: OURS["batch.build_batch"](PLAN, PLANNER.pages), "to", {"device": CPU}),
    (None, OURS["checkpoint.load_checkpoint"], {"folder": Path("no/folder"), "dtype": FLOAT}),
    *((None, function, {"model": small_model(), "tokenizer": ByteTokenizer()})
      for function in (LLM, OURS["llm.load_model"])),
    (ByteTokenizer, "encode", {"text": "text"}),
    (ByteTokenizer, "decode", {"token_ids": [65, 66]}),
    (None, OURS["runner.backend_here"], {"backend": paged.online_backend}),
    (None, OURS["scheduler.Scheduler"], {"pages": BlockPages(**POOL)} | LIMITS),
    (lambda: OURS["scheduler.Scheduler"](BlockPages(**POOL)), "admit",
     {"request": planned()[0].sequence.request}),
    (None, Runner, {"model": small_model(), "backend": paged.online_backend, "num_blocks": 6,
                    "block_size": 4} | NARROW),
    (lambda: Runner(small_model(), paged.online_backend, 6, 4), "run",
     {"batch": OURS["batch.build_batch"](PLAN, PLANNER.pages)}),
    *((engine, lambda engine, **params: engine.add([1], SamplingParams(**params)).params, good)
      for good in (PARAMS, {"num_samples": 2, "stop_tokens": [1, 2]})),
    (None, OURS["context.deal_out"], {"step": DecodeStep(**STEP), "rank": 1, "num_ranks": 2}),
    (None, OURS["heads.require_num_ranks"], {"model": small_model(), "num_ranks": 1}),
    (None, OURS["paper.decode_time"], {"model": paper.LLAMA_3_1_70B, "device": paper.H100}
     | {"link": paper.NVLINK_4, "batch": 2, "context": 3, "heads": 4, "contexts": 2}),
    (lambda: LLM(small_model()), partial(LLM.generate, prompts=[[1]]),
     {"arrivals": [2], "progress": False}),
]  # fmt: skip
MAY_BE_NONE = {"width", "max_seq_len", "tile_size", "num_shares", "chunk_size", "arrivals"}
MAY_BE_NONE |= {"alibi_slopes", "attention", "cache_dtype", "caches", "device", "like", "tokenizer"}
MAY_BE_NONE |= {"kv_cache_dtype", "pages"}
MAY_BE_A_SET = {"stop_tokens"}  # their order means nothing


def bad_for(argument: str, good: object) -> Iterator[object]:
    """What is refused in the place of a good input."""
    for bad in kinds(BAD, good):
        is_fine = bad is None and argument in MAY_BE_NONE
        if not is_fine and not (isinstance(bad, Set) and argument in MAY_BE_A_SET):
            yield bad
    if type(good) is Tensor:
        yield good.to("meta")
        yield from () if good.dtype in quantization.FLOAT8 else (good.to_sparse(),)


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
    if one is other:
        return True
    if hasattr(one, "out"):
        one, other = one.out, other.out
    if hasattr(one, "prompt"):
        return one.prompt == other.prompt
    if isinstance(one, Tensor):
        return torch.equal(one.double().nan_to_num(7), other.double().nan_to_num(7))
    if isinstance(one, dict):
        return all(same(value, other[key]) for key, value in one.items())
    if isinstance(one, tuple | list):
        return all(map(same, one, other))
    if type(one).__module__.startswith("pa_tutorial") and hasattr(one, "__dict__"):
        return same(vars(one), vars(other))
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


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a call saves, it saves here."""
    monkeypatch.chdir(tmp_path)


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
        for bad in bad_for(argument, value):
            found.append((argument, bad, complaint(make, name, good | {argument: bad}, argument)))
    assert [one for one in found if one[2]] == []
    for argument, value in good.items():
        for kind in kinds(GOOD, value):
            given = good | {argument: kind(value)}
            if "kernels" in getattr(name, "__module__", "") and isinstance(value, Tensor):
                continue  # a kernel may refuse a view with gaps
            results = [called(make, name, one)[1]() for one in (good, given)]
            assert same(*results), f"{argument}={kind(value)!r}"


@of_every_call
def test_nothing_and_too_much_mean_something_or_are_refused_in_our_words(
    make: Callable | None, name: str | Callable, good: dict
) -> None:
    found = [
        (argument, extreme, complaint(make, name, good | {argument: extreme}, argument))
        for argument, value in good.items()
        for extreme in EXTREMES.get(type(value), ())
    ]
    assert [one for one in found if one[2].startswith(("raises", "changed"))] == []


@pytest.mark.parametrize("size", [10**9, 10**12])
@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda size: PlainLayout(**SIZES | {"num_blocks": size}).empty(), "num_blocks"),
        (lambda size: BlockAllocator(size), "num_blocks"),
        (lambda size: LLM(small_model(), num_blocks=size), "num_blocks"),
        (lambda size: kv_cache.PagedKVCache(LAYOUT, size), "num_layers"),
        (lambda size: cached.KVCache(size, 1, 8), "max_len"),
        (lambda size: reservations.Blocks(size, 4), "num_slots"),
        (lambda size: reservations.long_tailed_requests(size, 0), "num_requests"),
        (lambda size: padded([[2, 1]], size), "width"),
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


# An 8-bit cache -----------------------------------------------------------------------------------

BAD_SCALES = (
    *(0, 0.0, -1.0, float("nan"), float("inf"), 1e-60, 1e39, 10**400, "1", True, [1.0], 1j),
    *(np.ones(2), torch.ones(3), torch.ones(1, 2), torch.ones(2).int(), torch.tensor(True)),
    *(torch.ones(2, device="meta"), torch.tensor([1.0, 0.0]), torch.tensor([np.nan, 1.0])),
    *(torch.empty(0), torch.tensor(1e-60, dtype=torch.float64)),
)
FLOAT8_LAYOUT = VllmLayout(num_blocks=3, num_kv_heads=2, head_size=32, block_size=4, dtype=E4M3)
FLOAT8_NEW = {"key": torch.ones(2, 2, 32), "value": torch.ones(2, 2, 32), "slot_mapping": SLOTS}


def of_float8_cache(**given: object) -> tuple[dict[str, Tensor], Callable]:
    cache = dict(zip(("k_cache", "v_cache"), FLOAT8_LAYOUT.empty(), strict=True))
    return cache, partial(layouts.reshape_and_cache, **cache | FLOAT8_NEW | given)


@pytest.mark.parametrize("name", ["k_scale", "v_scale"])
@pytest.mark.parametrize("bad", BAD_SCALES, ids=lambda bad: repr(bad)[:30])
def test_a_scale_that_is_no_positive_number_per_head_is_refused(name: str, bad: object) -> None:
    """What it is must be shown as it was given: 1e-60, and not the 0 that it is as a float32."""
    cache, write = of_float8_cache(**{name: bad})
    shown = re.escape(str(bad)) if isinstance(bad, int | float) and type(bad) is not bool else ""
    calls = (
        write,
        lambda: kv_cache.PagedKVCache(FLOAT8_LAYOUT, 1, **{name: bad}),
        lambda: QuantizedStep(**QUANTIZED_STEP, **{name: bad}),
    )
    for call in calls:
        with pytest.raises((TypeError, ValueError), match=rf"^{name}\b.*{shown}.*must "):
            call()
    assert all(tensor.float().isnan().all() for tensor in cache.values())


@pytest.mark.parametrize(
    "good", [2, np.float32(2), torch.tensor(2.0), torch.full((2,), 2.0).half()]
)
def test_a_scale_is_a_number_or_a_tensor(good: object) -> None:
    step = QuantizedStep(**QUANTIZED_STEP, k_scale=good)
    assert torch.equal(step.k_scale, torch.full((2,), 2.0))
    assert torch.equal(step.v_scale, torch.ones(2))


def test_a_scale_is_copied() -> None:
    """What is stored keeps its meaning when the caller's tensor changes."""
    scale = torch.ones(2)
    cache = kv_cache.PagedKVCache(FLOAT8_LAYOUT, 1, k_scale=scale)
    step = QuantizedStep(**QUANTIZED_STEP, v_scale=scale)
    scale.fill_(7.0)
    assert torch.equal(cache.scales[0], torch.ones(2))
    assert torch.equal(step.v_scale, torch.ones(2))


def test_a_number_is_checked_even_if_the_cache_is_on_a_gpu() -> None:
    on_gpu = SimpleNamespace(dtype=E4M3, device="cpu", is_cuda=True)
    with pytest.raises(ValueError, match="k_scale is 1e-60; it must be positive"):
        quantization.checked_scale("k_scale", 1e-60, 2, on_gpu)


def test_a_scale_of_a_cache_that_is_not_8_bit_is_refused() -> None:
    cache = caches()
    calls = (
        lambda: layouts.reshape_and_cache(**NEW, **cache, slot_mapping=SLOTS, v_scale=1.0),
        lambda: kv_cache.PagedKVCache(LAYOUT, 1, v_scale=1.0),
        lambda: QuantizedStep(**STEP, v_scale=1.0),
    )
    for call in calls:
        with pytest.raises(
            ValueError, match=r"v_scale is 1.0; it must be None: the cache is torch.f"
        ):
            call()
    assert not any(map(torch.count_nonzero, cache.values()))


@pytest.mark.parametrize("name", ["key", "value"])
@pytest.mark.parametrize("dtype", [torch.float64, E4M3, torch.int8], ids=str)
def test_an_8_bit_cache_takes_no_other_numbers_than_the_kernels(
    name: str, dtype: torch.dtype
) -> None:
    cache, write = of_float8_cache(**{name: FLOAT8_NEW[name].to(dtype)})
    with pytest.raises(ValueError, match=rf"{name} is {dtype}; it must be one of .*float16"):
        write()
    assert all(tensor.float().isnan().all() for tensor in cache.values())


def test_an_8_bit_cache_is_refused_where_nothing_would_apply_its_scales() -> None:
    for attend in (DecodeStep, paged.paged_gather, paged.paged_online):
        with pytest.raises(ValueError, match=r"k_cache.dtype is .*needs a QuantizedStep"):
            attend(**QUANTIZED_STEP)
    with pytest.raises(ValueError, match=r"k_cache.dtype is torch.float8.* this kernel has no"):
        backend_named("cuda_naive").prepare(QUANTIZED["vllm"])


@pytest.mark.parametrize("name", ["q", "k_cache"])
def test_other_8_bit_types_are_refused(name: str) -> None:
    """They would be read without any scale."""
    other = {name: STEP[name].to(torch.float8_e4m3fnuz)}
    other |= {"v_cache": STEP["v_cache"].to(torch.float8_e4m3fnuz)} if name == "k_cache" else {}
    with pytest.raises(ValueError, match=rf"{name}.dtype is torch.float8_e4m3fnuz; .* 16 bits"):
        DecodeStep(**STEP | other)


# Complete -----------------------------------------------------------------------------------------

# Not tried, by pattern: what only our own code calls, with what tried functions have checked.
INNER = (
    *("*.require_*", "*.checked_*", "train_*"),  # checks; scripts
    *("cpu.kernel.*", "cpu.vectors.*", "vectors.[!v]*", "dtypes.*"),  # code in a kernel
    *("template.*", "sources.*", "*.launch_*"),  # test_template.py; what a notebook shows
    *("triton.interpreter.[!i]*", "triton.interpreter.interpreted_language"),
    *("triton.inputs.*", "triton.backend.[uv]*", "triton.compiled.[!cn]*", "*.compiling_for"),
    *("compiled.backend.*", "compiled.original.*", "backend.Backend.*"),
    *("on_gpu.*", "cuda_backends.[!g]*", "cuda_launch.*Launch.*", "geometry.[!G]*"),
    *("cpu.backend.[!p]*", "intermediates.[!is]*", "intermediates.s[hu]*", "*.intermediates_of_*"),
    *(f"compiled.report.{name}" for name in ("l*", "s*", "a[rn]*", "assembled", "w*")),
    *("*Allocator.[fn]*", "reservations.*.*", "layouts.[Cfw]*", "prefix_cache.[cw]*"),  # paging
    "quantization.*quantized",
    *("paged.[!pf]*", "paged.TorchLaunch", "tiny_lm.Layer*", "tiny_lm.TinyLM.[nr]*", "work.c*"),
    *("runner.[!bR]*", "runner.Runner.a*", "scheduler.*.[!a]*", "scheduler.n*", "request.*"),
    *("rope.*", "model.*"),
    "full.unmasked_attention",  # takes no alibi_slopes; all others are tried
    *("command.*", "checkpoint.[!l]*", "llm.as_list", "tokenizer.*"),
    # Of many devices: on the ranks themselves; Ranks has a test of its own
    "pages.Pages.*",  # the protocol; BlockPages is tried
    *("context.[!d]*", "group.*", "heads.[!r]*", "heads.rep*", "paper.[!d]*", "ranks.*", "wire.*"),
)
# Anything of its kind: a dictionary to fill, a function, a name; one prompt's error stays with it.
ANY = {"self", "probe", "extra", "hash_function", "make_runner", "where", "name", "padding"}
ANY |= {"partition_size", "prompts", "params", "caches", "new", "tables"}
ANY |= {"k_scale", "v_scale"}  # tried below: a number is as good as a tensor


def entries() -> dict[str, set[str]]:
    """The functions that CALLS tries, by name, and their parameters."""
    found: dict[str, set[str]] = {}
    for make, name, good in CALLS:
        one = name.func if isinstance(name, partial) else name
        one = getattr(type(make()), one) if isinstance(one, str) else one
        one = one if hasattr(one, "__qualname__") else type(one).forward  # a model
        where = f"{in_its_room(one.__module__)}.{one.__qualname__}"
        found.setdefault(where, set()).update(good)
    return found


def test_every_public_function_has_an_entry() -> None:
    tried, missing = entries(), {}
    for name, function in OURS.items():
        parameters = inspect.signature(function).parameters.values()
        wanted = {p.name for p in parameters if p.kind <= 1}
        left = wanted - tried.get(name, set()) - ANY
        if left and not any(fnmatch(name, pattern) for pattern in INNER):
            missing[name] = sorted(left)
    assert not missing, f"{missing} are never tried: add them to CALLS in tests/test_bad_inputs.py"
