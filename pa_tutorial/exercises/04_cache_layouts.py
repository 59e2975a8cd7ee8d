"""Exercises of notebook 04: a byte address, writing to the cache, reading from it."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from pa_tutorial import oracle
from pa_tutorial.attention.cached import cached_attention
from pa_tutorial.cases import CASES
from pa_tutorial.checks.comparing import bounds_of
from pa_tutorial.checks.running import Trial
from pa_tutorial.exercises.exercise import Exercise, WrongAnswer, require_shape
from pa_tutorial.ladder import STAGES, AnswerError, require_written

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
)


def k_address_trials() -> list[Trial]:
    def places(shape: tuple[int, ...]) -> Tensor:
        """[100, 4]: block, head, offset, dim"""
        num_blocks, num_kv_heads, pieces, block_size, x = shape
        draw = torch.Generator().manual_seed(0)
        columns = [
            torch.randint(size, (100,), generator=draw)
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
        """Read out of a tensor that holds its own element numbers."""
        elements = torch.arange(torch.Size(shape).numel()).reshape(shape)
        block, head, offset, dim = places(shape).unbind(dim=1)
        found = elements[block, head, dim // shape[-1], offset, dim % shape[-1]]
        return {"out": found[None] * itemsize}

    return [
        Trial(
            name=name,
            isolates=isolates,
            meaning="Each index is worth the product of all sizes to the right of it. "
            "An address counts bytes.",
            run=partial(run, shape, itemsize),
            references={"the places in a tensor": partial(expected, shape, itemsize)},
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

WRITE_CASES = (
    # name, what it isolates, block table, tokens in all, of them padding, dtype
    ("one_token", "one token in the first slot of a block", [3], 1, (), torch.float16),
    ("worked_example", "11 tokens in blocks 5 and 2", [5, 2], 11, (), torch.float16),
    ("padding", "some tokens have slot -1", [1, 4], 12, (0, 7, 11), torch.float16),
    ("float32", "x is 4", [2, 6], 13, (), torch.float32),
)


def write_tokens_trials() -> list[Trial]:
    def tokens(num_tokens: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        numbers = torch.arange(1.0, 1 + 2 * num_tokens * 2 * 32) % 1999
        return tuple(numbers.reshape(2, num_tokens, 2, 32).to(dtype))

    def run(
        table: list[int],
        num_tokens: int,
        padding: tuple[int, ...],
        dtype: torch.dtype,
        function: Callable | None,
    ) -> dict[str, Tensor]:
        answer = write_tokens if function is None else function
        key, value = tokens(num_tokens, dtype)
        k_cache, v_cache = (torch.from_numpy(c).to(dtype) for c in caches(table, 0, dtype))
        slots = [table[i // 8] * 8 + i % 8 for i in range(num_tokens)]
        slots = torch.tensor([-1 if i in padding else slot for i, slot in enumerate(slots)])
        answer(key, value, k_cache, v_cache, slots)
        if k_cache.isnan().all() and v_cache.isnan().all():
            raise AnswerError("the cache did not change: not written yet?")
        return {"out": flat(k_cache, v_cache)}

    def caches(table: list[int], num_tokens: int, dtype: torch.dtype) -> tuple:
        key, value = (tensor.double().numpy() for tensor in tokens(num_tokens, dtype))
        return oracle.paged_cache([key], [value], [table], 7, 8, "vllm", 16 // dtype.itemsize)

    def flat(k_cache: Tensor, v_cache: Tensor) -> Tensor:
        """[2, all numbers]"""
        return torch.stack([k_cache.flatten(), v_cache.flatten()]).double().nan_to_num(EMPTY)

    def expected(
        table: list[int], num_tokens: int, padding: tuple[int, ...], dtype: torch.dtype
    ) -> dict[str, Tensor]:
        k_cache, v_cache = map(torch.from_numpy, caches(table, num_tokens, dtype))
        for token in padding:
            k_cache[table[token // 8], :, :, token % 8] = torch.nan
            v_cache[table[token // 8], :, :, token % 8] = torch.nan
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
            run=partial(run, *case),
            references={"the oracle": partial(expected, *case)},
            bounds={"out": 0.0},
            axes=("k_cache|v_cache", "number"),
        )
        for name, isolates, *case in WRITE_CASES
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
    "shuffled_blocks",
    "wide_tables",
    "block_zero_in_use",
    "block_size_8",
    "gqa",
    "head_size_120_float16",
)


def gather_blocks_trials() -> list[Trial]:
    def run(case_id: str, function: Callable | None) -> dict[str, Tensor]:
        answer = gather_blocks if function is None else function
        case = CASES[case_id]

        def as_stage(
            q: Tensor,
            k_cache: Tensor,
            v_cache: Tensor,
            tables: Tensor,
            seq_lens: Tensor,
            scale: float,
            slopes: None,
        ) -> Tensor:
            outs = []
            for sequence, seq_len in enumerate(seq_lens.tolist()):
                result = require_written(answer(k_cache, v_cache, tables[sequence], seq_len))
                shape = [seq_len, case.num_kv_heads, case.head_size]
                k, v = (require_shape(tensor, shape) for tensor in result)
                outs.append(cached_attention(q[sequence : sequence + 1], k, v, scale))
            return torch.cat(outs)

        return STAGES["paged_gather"].run(case, as_stage)

    return [
        Trial(
            name=case.id,
            isolates=case.isolates,
            meaning=case.meaning,
            run=partial(run, case.id),
            references={"the oracle": case.expected},
            bounds=bounds_of(case.id),
            axes=case.axes,
            problem=case,
        )
        for case in (CASES[f"decode/{name}"] for name in GATHER_CASES)
    ]


# ------------------------------------------------------------------------------------------------

EXERCISES = (
    Exercise(
        notebook=NOTEBOOK,
        text="Compute an address by hand, as the kernel does for every number of K that it "
        "reads. In notebook 09 you meet this formula again, spread over threads.",
        solution=k_address,
        wrong=(
            WrongAnswer("element * x + dim % x", "element * 8 + dim % 8", "x is always 8"),
            WrongAnswer("return element * itemsize", "return element",
                        "numbers are counted, not bytes"),
            WrongAnswer("element * block_size + offset\n    element = element * x + dim % x",
                        "element * x + dim % x\n    element = element * block_size + offset",
                        "the order of V: the token runs fastest"),
            WrongAnswer("block * num_kv_heads + head", "block + head",
                        "a block holds one head only"),
            WrongAnswer("num_pieces + dim // x\n    element = element * block_size + offset",
                        "block_size + offset\n    element = element * num_pieces + dim // x",
                        "the plain layout: token after token"),
        ),
        trials=k_address_trials,
    ),
    Exercise(
        notebook=NOTEBOOK,
        text="Write tokens into the cache: vLLM calls this `reshape_and_cache`. A loop over the "
        "tokens is good enough here. You change the tensors in place and return nothing.",
        solution=write_tokens,
        wrong=(
            WrongAnswer("        if slot == -1:\n            continue\n", "",
                        "slot -1 is written to the last slot of the pool"),
            WrongAnswer("divmod(slot, block_size)", "divmod(slot, 16)",
                        "16 tokens a block, whatever the cache has"),
            WrongAnswer("= value[token]", "= key[token]", "K stands in V"),
            WrongAnswer("key[token].reshape(num_kv_heads, num_pieces, x)",
                        "key[token].reshape(num_kv_heads, x, num_pieces).mT",
                        "every num_pieces-th dimension is put together instead of neighbours"),
            WrongAnswer("        v_cache[block, :, :, offset] = value[token]\n", "",
                        "V is forgotten"),
            WrongAnswer("enumerate(slot_mapping.tolist())",
                        "enumerate(slot_mapping.tolist()[:block_size])",
                        "a prompt longer than a block is cut"),
        ),
        trials=write_tokens_trials,
    ),
    Exercise(
        notebook=NOTEBOOK,
        text="The opposite way: copy one sequence out of its blocks. With your function in the "
        "place of ours, the stage `paged_gather` must still be right.",
        solution=gather_blocks,
        wrong=(
            WrongAnswer("-(-seq_len // block_size)", "max(1, seq_len // block_size)",
                        "the last block is dropped if it is not full"),
            WrongAnswer("return k[:seq_len], v[:seq_len]",
                        "return k[-seq_len:], v[-seq_len:]",
                        "the end of the last block is taken instead of the start of the first"),
            WrongAnswer("numbers = block_table[: -(-seq_len // block_size)].long()",
                        "numbers = torch.arange(-(-seq_len // block_size))",
                        "the block table is not used"),
            WrongAnswer("k_cache[numbers].permute(0, 3, 1, 2, 4)", "k_cache[numbers]",
                        "K is reshaped without bringing the token to the front"),
            WrongAnswer("v_cache[numbers].permute(0, 3, 1, 2)", "v_cache[numbers]",
                        "V is reshaped without bringing the token to the front"),
            WrongAnswer("k_cache[numbers].permute(0, 3, 1, 2, 4)",
                        "k_cache[numbers].permute(0, 3, 1, 4, 2)",
                        "pieces and numbers in a piece are exchanged"),
            WrongAnswer("numbers = block_table[: -(-seq_len // block_size)].long()",
                        "numbers = block_table[block_table > 0].long()",
                        "a 0 in the table is taken for padding"),
        ),
        trials=gather_blocks_trials,
    ),
)  # fmt: skip
