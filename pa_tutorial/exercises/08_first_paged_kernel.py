"""Exercises of notebook 08: slots, output and writing of K, as kernels over blocks."""

import numpy as np
import torch
from numba import cuda, float32

from pa_tutorial.exercises.drawing import seeded, seeded_torch
from pa_tutorial.exercises.exercise import Exercise
from pa_tutorial.exercises.kernel_grading import ITEM, Enough, Task, on_tasks
from pa_tutorial.paging.layouts import VllmLayout, reshape_and_cache, slot_mapping
from pa_tutorial.simt.gpus import WARP_SIZE
from pa_tutorial.simt.traffic import SECTOR
from pa_tutorial.walk.problem import DecodeProblem

OUTSIDE = 1_000_000  # stands in block tables behind the blocks of a sequence
WORKED = {"seq_lens": (11,), "tables": ((5, 2),), "num_kv_heads": 2}

_TABLE = "Token -> logical block and offset; the row of this sequence has the physical block."
_GROUPS = "Query head h reads KV head h // (num_heads / num_kv_heads)."
_ROWS = "A length, a table or a row of out belongs to another sequence."
_GO_ON = "Thread t takes t, t + blockDim.x, …, until the end."


def problem(draw: int, **sizes: object) -> DecodeProblem:
    """A decode step in float32; slots without a token hold NaN."""
    words = "exercise", "a part of the kernel", "see the exercise"
    # of quarters, dot products are exact: no score is so near 0 that rounding shows
    drawn = {"seed": draw, "rounded_to": 0.25 if draw else 0.0}
    return DecodeProblem(*words, **sizes, **drawn, num_heads=4, dtype=torch.float32)


def tables_and_lens(step: DecodeProblem) -> tuple[np.ndarray, np.ndarray]:
    """As in the batch, but what lies behind a sequence's blocks in its row is no block."""
    inputs = step.paged("vllm")
    tables, seq_lens = inputs.block_tables.numpy().copy(), inputs.seq_lens.numpy()
    for row, seq_len in zip(tables, seq_lens, strict=True):
        row[-(-seq_len // step.block_size) :] = OUTSIDE
    return tables, seq_lens


# Warm-up ----------------------------------------------------------------------------------------
@cuda.jit
def token_slots(out, block_tables, seq_lens, block_size):
    """The slot of each token: physical block number * block_size + offset.

    out  [num_seqs, max_seq_len] float32; the grid is (num_seqs)
    """
    seq_idx, token_idx = cuda.blockIdx.x, cuda.threadIdx.x
    if token_idx < seq_lens[seq_idx]:
        # the physical block number, the offset, and out[seq_idx, token_idx]
        ### BEGIN SOLUTION
        block = block_tables[seq_idx, token_idx // block_size]
        out[seq_idx, token_idx] = block * block_size + token_idx % block_size
        ### END SOLUTION


SLOT_CASES = (
    # name, what it isolates, what its failure means, sizes
    ("worked_example", "11 tokens in two blocks", _TABLE, WORKED),
    ("batch", "lengths 3, 20 and 8", _ROWS, {"seq_lens": (3, 20, 8)}),
    ("block_size_16", "75 tokens", _TABLE, {"seq_lens": (75, 40), "block_size": 16}),
)


def slot_task(draw: int, sizes: dict) -> Task:
    drawn = {"tables": None} if draw else {}
    step = problem(draw, **{"head_size": 32, "block_size": 8, **sizes, **drawn})
    tables, seq_lens = tables_and_lens(step)
    expected = np.full((len(seq_lens), max(seq_lens)), np.nan, np.float32)
    for row, table, seq_len in zip(expected, tables, seq_lens, strict=True):
        row[:seq_len] = slot_mapping(table.tolist(), range(seq_len), step.block_size)
    inputs = tables, seq_lens, np.int32(step.block_size)
    return Task(96, inputs, expected, {}, grid=(len(seq_lens),))


SLOTS = Exercise(
    text="""\
**Your turn.** A physical block and an offset make a *slot*, the place of a token in the pool. Write
the slot of each token.""",
    solution=token_slots,
    cases=on_tasks(SLOT_CASES, slot_task, ("sequence", "token")),
    is_warm_up=True,
)


# 1. ---------------------------------------------------------------------------------------------
@cuda.jit
def paged_values(out, weights, v_cache, block_tables, seq_lens):
    """Weights times V, over blocks in the plain layout. The grid is (num_heads, num_seqs).

    out           [num_seqs, num_heads, head_size]
    weights       [num_seqs, num_heads, longest]   of the softmax; behind the last token: NaN
    v_cache       [num_blocks, num_kv_heads, block_size, head_size]   the plain layout
    block_tables  [num_seqs, max_num_blocks_per_seq]   behind the sequence's blocks: anything
    seq_lens      [num_seqs]

    All floats are float32. Any number of threads that is a multiple of 32; head_size is a
    multiple of 8.
    """
    # 1. which head of which sequence has this thread block? Which KV head does it read?
    # 2. thread t takes the elements t, t + cuda.blockDim.x, … of the output
    # 3. for each of them, go through the tokens of the sequence, and through no other slot
    ### BEGIN SOLUTION
    head, sequence = cuda.blockIdx.x, cuda.blockIdx.y
    _, num_kv_heads, block_size, head_size = v_cache.shape
    kv_head = head // (out.shape[1] // num_kv_heads)
    for d in range(cuda.threadIdx.x, head_size, cuda.blockDim.x):
        acc = float32(0)
        for token in range(seq_lens[sequence]):
            block, offset = block_tables[sequence, token // block_size], token % block_size
            acc += weights[sequence, head, token] * v_cache[block, kv_head, offset, d]
        out[sequence, head, d] = acc
    ### END SOLUTION


VALUE_CASES: tuple[tuple, ...] = (
    # name, what it isolates, what its failure means, threads, sizes
    ("worked_example", "11 tokens in blocks 5 and 2", _TABLE, 32, WORKED),
    ("shuffled_blocks", "32 tokens in blocks in no order", _TABLE, 64, {"seq_lens": (32,)}),
    ("batch", "lengths 3, 20 and 8", _ROWS, 32, {"seq_lens": (3, 20, 8)}),
    ("gqa", "4 query heads read 2 KV heads", _GROUPS, 32, {"seq_lens": (9,), "num_kv_heads": 2}),
    ("large_head", "head_size 72, 32 threads", _GO_ON, 32, {"seq_lens": (10,), "head_size": 72}),
    ("many_threads", "128 threads, head_size 64, block_size 16",
     "A thread without an element of the output does nothing.", 128,
     {"seq_lens": (19,), "head_size": 64, "block_size": 16}),
)  # fmt: skip


def value_task(draw: int, num_threads: int, sizes: dict) -> Task:
    step = problem(draw, **{"head_size": 32, "block_size": 8, **sizes})
    expected = step.expected()
    out = expected["out"].astype(np.float32)
    weights = expected["logits"].astype(np.float32)
    weights[np.isneginf(expected["qk"])] = np.nan
    arrays = weights, step.paged("plain").v_cache.numpy(), *tables_and_lens(step)
    rows = step.num_heads * sum(step.seq_lens)  # of V: one a token, for each head
    sectors = rows * step.head_size * ITEM // SECTOR
    enough = {0: _once(out), 2: Enough(sectors, rows * -(-step.head_size // WARP_SIZE))}
    return Task(num_threads, arrays, out, enough, grid=(step.num_heads, len(step.seq_lens)))


def _once(array: np.ndarray) -> Enough:
    """Each row of the array by transactions of its own."""
    num_rows = array.size // array.shape[-1]
    transactions = num_rows * -(-array.shape[-1] // WARP_SIZE)
    return Enough(array.size * ITEM // SECTOR, transactions)


VALUES = Exercise(
    text="""\
The second half of your kernel, with V in the *plain* layout. A thread takes an element of the
output, as before. That cost 16 times the sectors; here neighbouring threads find their elements
side by side, and no transaction may move more sectors than it needs.""",
    solution=paged_values,
    cases=on_tasks(VALUE_CASES, value_task, ("sequence", "head", "element")),
)


# 2. ---------------------------------------------------------------------------------------------
@cuda.jit
def write_keys(k_cache, key, slot_mapping):
    """Write the K of new tokens into their slots. The grid is (num_tokens).

    k_cache       [num_blocks, num_kv_heads, head_size / x, block_size, x]   vLLM's layout
    key           [num_tokens, num_kv_heads, head_size]
    slot_mapping  [num_tokens] int64; -1: nothing is written for this row

    All floats are float32. Any number of threads that is a multiple of 32; num_kv_heads times
    head_size is a multiple of 32.
    """
    # 1. which row of key has this thread block, and which slot?
    # 2. slot -> block and offset; what happens with -1?
    # 3. count the numbers of the row through all heads: thread t takes t, t + cuda.blockDim.x, …
    # 4. number -> head and d; d -> piece, and number in the piece
    ### BEGIN SOLUTION
    token = cuda.blockIdx.x
    _, num_kv_heads, num_pieces, block_size, x = k_cache.shape
    head_size = num_pieces * x
    slot = slot_mapping[token]
    if slot < 0:
        return
    block, offset = slot // block_size, slot % block_size
    for i in range(cuda.threadIdx.x, num_kv_heads * head_size, cuda.blockDim.x):
        head, d = i // head_size, i % head_size
        k_cache[block, head, d // x, offset, d % x] = key[token, head, d]
    ### END SOLUTION


_PLACE = "In which block, head, piece and slot does number d of a token lie?"
NUM_BLOCKS = 6
KEY_CASES: tuple[tuple, ...] = (
    # name, what it isolates, what its failure means, threads, slots, heads, head and block size
    ("one_token", "one token, one head", _PLACE, 32, (13,), 1, 32, 8),
    ("decode_step", "a token of each of 3 sequences", _PLACE, 32, (18, 3, 47), 1, 32, 8),
    ("heads", "2 KV heads", "A row of key holds all heads.", 64, (18, 19), 2, 32, 8),
    ("padding", "rows with slot -1, and one with slot 0", "-1 is skipped; slot 0 is a slot.",
     32, (41, -1, 0, -1), 1, 32, 8),
    ("few_threads", "4 heads of 64, 32 threads", _GO_ON, 32, (5, 30), 4, 64, 8),
    ("other_sizes", "head_size 48, block_size 16", "Pieces, slots and x are different things.",
     64, (70, 21), 2, 48, 16),
)  # fmt: skip


def key_task(
    draw: int, num_threads: int, slots: tuple[int, ...], heads: int, head_size: int, size: int
) -> Task:
    slot_mapping = torch.tensor(slots)
    if draw:  # the same places in blocks of other numbers; -1 and block 0 stay
        names = seeded(len(slots), draw).permutation(range(1, NUM_BLOCKS))
        names = torch.tensor([0, *names])
        others = names[slot_mapping // size] * size + slot_mapping % size
        slot_mapping = others.where(slot_mapping >= 0, -1)
    k_cache, v_cache = VllmLayout(NUM_BLOCKS, heads, head_size, size, torch.float32).empty()
    key = torch.randn(len(slots), heads, head_size, generator=seeded_torch(len(slots), draw))
    reshape_and_cache(key, key, k_cache, v_cache, slot_mapping)
    used = key[slot_mapping >= 0].numel()
    key[slot_mapping < 0] = torch.nan
    arrays = key.numpy(), slot_mapping.numpy()
    return Task(num_threads, arrays, k_cache.numpy(), {1: Enough.of(used)}, grid=(len(slots),))


KEYS = Exercise(
    text="""\
Before a kernel can read K, another must write it. Write the half of `reshape_and_cache` that is
for K, with one thread block a token. Other slots belong to other sequences: leave them alone. Rows
with the slot -1 are padding. The reads of `key` must be coalesced: no sector twice, and no more
transactions than full warps need.""",
    solution=write_keys,
    cases=on_tasks(KEY_CASES, key_task, ("block", "head", "piece", "slot", "number")),
)


EXERCISES = (SLOTS, VALUES, KEYS)
