"""Exercise of notebook 08: writing K into its slots, as a kernel."""

import torch
from numba import cuda

from pa_tutorial.exercises.drawing import seeded, seeded_torch
from pa_tutorial.exercises.exercise import Exercise
from pa_tutorial.exercises.kernel_grading import Task, on_tasks
from pa_tutorial.paging.layouts import VllmLayout, reshape_and_cache


@cuda.jit
def write_keys(k_cache, key, slot_mapping):
    """Write the K of new tokens into their slots. The grid is (num_tokens).

    k_cache       [num_blocks, num_kv_heads, head_size / x, block_size, x]   vLLM's layout
    key           [num_tokens, num_kv_heads, head_size]
    slot_mapping  [num_tokens] int64; -1: nothing is written for this row

    All floats are float32. Any number of threads that is a multiple of 32; num_kv_heads times
    head_size is a multiple of 32.
    """
    # 1. which row of key has this thread block, and which slot? What happens with -1?
    # 2. count the elements of the row through all heads: the threads share them as in 07
    # 3. where does each one go: block, head, piece, offset and place in the piece?
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


_PLACE = "In which block, piece and slot is element d of a token?"
NUM_BLOCKS = 6
KEY_CASES: tuple[tuple, ...] = (
    # name, what it isolates, what its failure means, threads, slots, heads, head and block size
    ("one_token", "one token, one head", _PLACE, 32, (13,), 1, 32, 8),
    ("decode_step", "a token of each of 3 sequences", _PLACE, 32, (18, 3, 47), 1, 32, 8),
    ("heads", "2 KV heads", "A row of key holds all heads.", 64, (18, 19), 2, 32, 8),
    ("padding", "rows with slot -1, and one with slot 0", "-1 is skipped; slot 0 is a slot.",
     32, (41, -1, 0, -1), 1, 32, 8),
    ("few_threads", "4 heads of 64, 32 threads", "Does the loop go on until the end?",
     32, (5, 30), 4, 64, 8),
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
    key[slot_mapping < 0] = torch.nan
    arrays = key.numpy(), slot_mapping.numpy()
    return Task(num_threads, arrays, k_cache.numpy(), {}, grid=(len(slots),))


KEYS = Exercise(
    text="""\
**Your turn.** A kernel can read K only after another has written it. Write the half of
`reshape_and_cache` (notebook 04) that is for K, with one thread block per token. Leave all other
slots alone. A row with slot -1 is padding.""",
    solution=write_keys,
    cases=on_tasks(KEY_CASES, key_task, ("block", "head", "piece", "slot", "number")),
    is_warm_up=True,
)


EXERCISES = (KEYS,)
