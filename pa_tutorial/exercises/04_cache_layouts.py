"""Exercises of notebook 04: a byte address, writing to the cache, reading from it."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from pa_tutorial.checks.running import Trial
from pa_tutorial.exercises.drawing import in_other_blocks, new_names, reseeded, seeded, seeded_torch
from pa_tutorial.exercises.exercise import Exercise, require_shape
from pa_tutorial.walk.calls import AnswerError, require_written
from pa_tutorial.walk.cases import CASES
from pa_tutorial.walk.problem import DecodeProblem

NOTEBOOK = "04_cache_layouts"


# 1. ---------------------------------------------------------------------------------------------


def k_address(
    block: int, head: int, offset: int, dim: int, k_shape: tuple[int, ...], itemsize: int
) -> int:
    """The address of one number of K in vLLM's layout, in bytes from the start of k_cache.

    offset    the token's place in the block
    k_shape   (num_blocks, num_kv_heads, head_size / x, block_size, x)
    itemsize  bytes per number: 2 for float16
    """
    # 1. x neighbouring dimensions lie together: dim is number dim % x of piece dim // x
    # 2. the index into the tensor is (block, head, piece, offset, number)
    # 3. how many numbers does one step of each index pass over? add up, then count bytes
    ### BEGIN SOLUTION
    _, num_kv_heads, num_pieces, block_size, x = k_shape
    element = block * num_kv_heads + head
    element = element * num_pieces + dim // x
    element = element * block_size + offset
    element = element * x + dim % x
    return element * itemsize
    ### END SOLUTION


ADDRESS_CASES = (
    ("worked_example", "float16, heads of 32, blocks of 8", (7, 2, 4, 8, 8), 2),
    ("float32", "x is 4", (5, 3, 16, 16, 4), 4),
    ("block_size_32", "blocks of 32 tokens, one KV head", (4, 1, 8, 32, 8), 2),
    ("head_size_80", "ten pieces", (3, 4, 10, 16, 8), 2),
    ("many_blocks", "addresses that do not fit into 32 bits", (80_000, 32, 16, 16, 8), 2),
)


def k_address_trials(draw: int = 0) -> list[Trial]:
    def places(shape: tuple[int, ...]) -> Tensor:
        """[100, 4]: block, head, offset, dim"""
        num_blocks, num_kv_heads, pieces, block_size, x = shape
        generator = seeded_torch(0, draw)
        columns = [
            torch.randint(size, (100,), generator=generator)
            for size in (num_blocks, num_kv_heads, block_size, pieces * x)
        ]
        return torch.stack(columns, dim=1)

    def run(shape: tuple[int, ...], itemsize: int, function: Callable | None) -> dict[str, Tensor]:
        answer = k_address if function is None else function
        addresses = [answer(*place, shape, itemsize) for place in places(shape).tolist()]
        for address in addresses:
            if not isinstance(require_written(address), int):
                raise AnswerError(f"it returned {address!r}; an address is a whole number")
        return {"out": torch.tensor(addresses)[None]}

    def expected(shape: tuple[int, ...], itemsize: int) -> dict[str, Tensor]:
        """By the strides of a tensor of that shape."""
        strides = torch.tensor(torch.empty(shape, device="meta").stride())
        block, head, offset, dim = places(shape).unbind(dim=1)
        x = shape[-1]
        index = torch.stack([block, head, dim // x, offset, dim % x], dim=1)
        return {"out": (index * strides).sum(dim=1)[None] * itemsize}

    return [
        Trial(
            name=name,
            isolates=isolates,
            meaning="Each index is worth the product of all sizes to the right of it. "
            "An address counts bytes.",
            run=partial(run, shape, itemsize),
            references={"the strides of a tensor": partial(expected, shape, itemsize)},
            bounds={"out": 0.0},
            axes=("call", "place"),
        )
        for name, isolates, shape, itemsize in ADDRESS_CASES
    ]


# 2. ---------------------------------------------------------------------------------------------


def write_tokens(
    key: Tensor, value: Tensor, k_cache: Tensor, v_cache: Tensor, slot_mapping: Tensor
) -> None:
    """Write the K and V of new tokens into the cache, in vLLM's layout, in place.

    key, value    [num_tokens, num_kv_heads, head_size]
    k_cache       [num_blocks, num_kv_heads, head_size / x, block_size, x]
    v_cache       [num_blocks, num_kv_heads, head_size, block_size]
    slot_mapping  [num_tokens] int64; -1: this token is not written
    """
    # for each token:
    # 1. block and offset from the slot; leave out slot -1
    # 2. its K, [num_kv_heads, head_size], cut into pieces: [num_kv_heads, head_size / x, x]
    # 3. one assignment to k_cache and one to v_cache
    ### BEGIN SOLUTION
    _, num_kv_heads, num_pieces, block_size, x = k_cache.shape
    for token, slot in enumerate(slot_mapping.tolist()):
        if slot == -1:
            continue
        block, offset = divmod(slot, block_size)
        k_cache[block, :, :, offset, :] = key[token].reshape(num_kv_heads, num_pieces, x)
        v_cache[block, :, :, offset] = value[token]
    ### END SOLUTION


EMPTY = -9.0  # stands in the comparison where nothing was written
IN_BLOCKS_5_AND_2 = [*range(40, 48), 16, 17, 18]
WRITE_CASES = (
    # name, what it isolates, (num_blocks, num_kv_heads, head_size, block_size), slots, dtype, used
    ("one_token", "one token in the first slot of a block", (7, 2, 32, 8), [24], torch.float16,
     False),
    ("worked_example", "11 tokens in blocks {} and {}", (7, 2, 32, 8), IN_BLOCKS_5_AND_2,
     torch.float16, False),
    ("padding", "some tokens have slot -1", (7, 2, 32, 8), [-1, 9, 10, -1, 12, -1],
     torch.float16, False),
    ("float32", "x is 4", (7, 2, 32, 8), IN_BLOCKS_5_AND_2, torch.float32, False),
    ("other_sizes", "3 heads of 48, blocks of 16, slots in any order", (4, 3, 48, 16),
     [21, 5, -1, 0, 50, 20], torch.float32, False),
    ("used_cache", "other tokens live in the same blocks", (4, 1, 16, 8), [3, 17],
     torch.float32, True),
)  # fmt: skip


def _write_cases(draw: int) -> list[tuple]:
    """The same tokens in other blocks."""
    rng, cases = seeded(0, draw), []
    for name, isolates, sizes, slots, *others in WRITE_CASES:
        num_blocks, block_size = sizes[0], sizes[-1]
        names = new_names(rng, 0, num_blocks, num_blocks) if draw else range(num_blocks)
        slots = in_other_blocks(slots, block_size, names)
        blocks = dict.fromkeys(slot // block_size for slot in slots)  # each once, in their order
        cases.append((name, isolates.format(*blocks), sizes, slots, *others))
    return cases


def write_tokens_trials(draw: int = 0) -> list[Trial]:
    def inputs(sizes: tuple, slots: list[int], dtype: torch.dtype, used: bool) -> tuple:
        """key, value, k_cache, v_cache, slot_mapping; all numbers differ."""
        num_blocks, num_kv_heads, head_size, block_size = sizes
        x = 16 // dtype.itemsize
        rng = seeded_torch(0, draw)
        key, value = torch.randn(2, len(slots), num_kv_heads, head_size, generator=rng).to(dtype)
        k_cache = torch.full((num_blocks, num_kv_heads, head_size // x, block_size, x), torch.nan)
        v_cache = torch.full((num_blocks, num_kv_heads, head_size, block_size), torch.nan)
        if used:
            k_cache, v_cache = (torch.randn(c.shape, generator=rng) for c in (k_cache, v_cache))
        return key, value, k_cache.to(dtype), v_cache.to(dtype), torch.tensor(slots)

    def run(case: tuple, function: Callable | None) -> dict[str, Tensor]:
        answer = write_tokens if function is None else function
        given, before = inputs(*case), inputs(*case)
        answer(*given)
        for name, index in (("key", 0), ("value", 1), ("slot_mapping", 4)):
            if not torch.equal(given[index], before[index]):
                raise AnswerError(f"it changed {name}; it must only read it")
        if all(map(same, given[2:4], before[2:4])):
            raise AnswerError("the cache did not change: not written yet?")
        return {"out": flat(*given[2:4])}

    def same(one: Tensor, other: Tensor) -> bool:
        return torch.equal(one.nan_to_num(EMPTY), other.nan_to_num(EMPTY))

    def flat(k_cache: Tensor, v_cache: Tensor) -> Tensor:
        """[2, all numbers]"""
        return torch.stack([k_cache.flatten(), v_cache.flatten()]).double().nan_to_num(EMPTY)

    def expected(case: tuple) -> dict[str, Tensor]:
        """Number by number."""
        key, value, k_cache, v_cache, slots = inputs(*case)
        x, block_size = k_cache.shape[-1], v_cache.shape[-1]
        for token, slot in enumerate(slots.tolist()):
            if slot >= 0:
                block, offset = slot // block_size, slot % block_size
                for dim in range(v_cache.shape[2]):
                    k_cache[block, :, dim // x, offset, dim % x] = key[token, :, dim]
                    v_cache[block, :, dim, offset] = value[token, :, dim]
        return {"out": flat(k_cache, v_cache)}

    return [
        Trial(
            name=name,
            isolates=isolates,
            meaning=(
                "A token with slot -1 was written: Python counts -1 from the end."
                if name == "padding"
                else f"A number is in the wrong place; {EMPTY:.0f} stands for an untouched one."
            ),
            run=partial(run, case),
            references={"number by number": partial(expected, case)},
            bounds={"out": 0.0},
            axes=("k_cache|v_cache", "number"),
        )
        for name, isolates, *case in _write_cases(draw)
    ]


# 3. ---------------------------------------------------------------------------------------------


def gather_blocks(
    k_cache: Tensor, v_cache: Tensor, block_table: Tensor, seq_len: int
) -> tuple[Tensor, Tensor]:
    """Copy K and V of one sequence out of its blocks, in vLLM's layout.

    k_cache      [num_blocks, num_kv_heads, head_size / x, block_size, x]
    v_cache      [num_blocks, num_kv_heads, head_size, block_size]
    block_table  [max_num_blocks_per_seq] int32; what lies behind the sequence is padding
    returns      K and V, each [seq_len, num_kv_heads, head_size]
    """
    # 1. how many blocks does the sequence have? the last one need not be full
    # 2. k_cache[numbers] is [blocks, num_kv_heads, head_size / x, block_size, x]:
    #    bring block and offset to the front, pieces and x to the end (permute), then reshape
    # 3. the same for v_cache; cut off what lies behind seq_len
    ### BEGIN SOLUTION
    _, num_kv_heads, _, block_size, _ = k_cache.shape
    numbers = block_table[: -(-seq_len // block_size)].long()
    k = k_cache[numbers].permute(0, 3, 1, 2, 4).reshape(-1, num_kv_heads, v_cache.shape[2])
    v = v_cache[numbers].permute(0, 3, 1, 2).reshape(-1, num_kv_heads, v_cache.shape[2])
    return k[:seq_len], v[:seq_len]
    ### END SOLUTION


GATHER_CASES = (
    "worked_example",
    "one_full_block",
    "tail",
    "stale_slots",
    "shuffled_blocks",
    "wide_tables",
    "block_zero_in_use",
    "block_size_8",
    "gqa",
    "head_size_120_float16",
)


def gather_blocks_trials(draw: int = 0) -> list[Trial]:
    def run(case: DecodeProblem, function: Callable | None) -> dict[str, Tensor]:
        answer = gather_blocks if function is None else function
        inputs = case.paged("vllm")
        both: list[list[Tensor]] = [[], []]
        for table, seq_len in zip(inputs.block_tables, case.seq_lens, strict=True):
            result = require_written(answer(inputs.k_cache, inputs.v_cache, table, seq_len))
            if not isinstance(result, tuple | list) or len(result) != 2:
                raise AnswerError("it must return two tensors, K and V")
            for side, tensor in zip(both, result, strict=True):
                shape = [seq_len, case.num_kv_heads, case.head_size]
                if require_shape(tensor, shape).dtype != case.dtype:
                    raise AnswerError(f"it returned {tensor.dtype}; the cache is {case.dtype}")
                side.append(tensor)
        return {"out": torch.stack([torch.cat(side) for side in both])}

    def expected(case: DecodeProblem) -> dict[str, Tensor]:
        inputs = case.inputs()
        return {"out": torch.stack([torch.cat(inputs.keys), torch.cat(inputs.values)])}

    return [
        Trial(
            name=case.id,
            isolates=case.isolates,
            meaning=case.meaning,
            run=partial(run, case),
            references={"the tokens that were written": partial(expected, case)},
            bounds={"out": 0.0},
            axes=("K|V", "token", "head", "dimension"),
        )
        for case in (reseeded(CASES[f"decode/{name}"], draw) for name in GATHER_CASES)
    ]


# ------------------------------------------------------------------------------------------------

EXERCISES = (
    Exercise(
        notebook=NOTEBOOK,
        text="Compute an address by hand, as the kernel does for every number of K that it "
        "reads. In notebook 09 you meet this formula again, spread over threads.",
        solution=k_address,
        trials=k_address_trials,
    ),
    Exercise(
        notebook=NOTEBOOK,
        text="Write tokens into the cache: vLLM calls this `reshape_and_cache`. A loop over the "
        "tokens is good enough here. You change the tensors in place and return nothing.",
        solution=write_tokens,
        trials=write_tokens_trials,
    ),
    Exercise(
        notebook=NOTEBOOK,
        text="The opposite way: copy one sequence out of its blocks. The check compares every "
        "number with what was written.",
        solution=gather_blocks,
        trials=gather_blocks_trials,
    ),
)
