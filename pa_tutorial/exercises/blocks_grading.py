"""The cases of notebook 03 by hand, and the same with other numbers in them."""

from pa_tutorial.exercises.drawing import in_other_blocks, new_names, seeded

SLOT_CASES: tuple[tuple, ...] = (
    # name, what it isolates, block_table, first, last, block_size, expected
    ("first_block", "a prompt inside one block", [3], 0, 4, 4, [12, 13, 14, 15]),
    ("worked_example", "11 tokens in blocks {} and {}", [5, 2], 0, 11, 8,
     [40, 41, 42, 43, 44, 45, 46, 47, 16, 17, 18]),
    ("decode_step", "one new token", [5, 2], 10, 11, 8, [18]),
    ("chunk", "tokens in the middle of a sequence", [4, 1, 9], 3, 9, 4,
     [19, 4, 5, 6, 7, 36]),
    ("other_block_size", "blocks of 16 tokens", [7, 0], 15, 18, 16, [127, 0, 1]),
    ("blocks_of_6", "a block size that is no power of two", [300, 2, 8, 1, 9], 22, 27, 6,
     [10, 11, 54, 55, 56]),
)  # fmt: skip
NUM_BLOCKS = 301  # of the pool in which all these tables are


def slot_cases(draw: int) -> list[tuple]:
    """The same tables with other physical block numbers: the slots by hand move with them."""
    rng, cases = seeded(0, draw), []
    for name, isolates, table, *run, block_size, slots in SLOT_CASES:
        if draw:
            names = [0, *new_names(rng, 1, 4 * NUM_BLOCKS, NUM_BLOCKS - 1)]  # 0 stays a block
            table = [names[block] for block in table]
            slots = in_other_blocks(slots, block_size, names)
        cases.append((name, isolates.format(*table), table, *run, block_size, slots))
    return cases


APPEND_CASES = (
    # name, what it isolates, block_size, (table, num_tokens, ref_counts, free); afterwards
    # (table, ref_counts, free, copies), or None: OutOfBlocks
    ("room", "the last block has room", 4, ([1], 3, [0, 1, 0, 0], [3, 2]),
     ([1], [0, 1, 0, 0], [3, 2], [])),
    ("room_and_none_free", "no block is free, and none is needed", 4, ([1], 3, [0, 1], []),
     ([1], [0, 1], [], [])),
    ("full_block", "the last block is full", 4, ([1], 4, [0, 1, 0, 0], [3, 2]),
     ([1, 2], [0, 1, 1, 0], [3], [])),
    ("first_token", "a sequence without a block", 4, ([], 0, [0, 0, 0, 0], [3, 2, 1]),
     ([1], [0, 1, 0, 0], [3, 2], [])),
    ("blocks_of_3", "blocks of 3 tokens", 3, ([2, 1], 4, [0, 1, 1, 0], [3]),
     ([2, 1], [0, 1, 1, 0], [3], [])),
    ("copy_on_write", "the last block is shared and not full", 4, ([1, 2], 6, [0, 2, 2, 0], [3]),
     ([1, 3], [0, 2, 1, 1], [], [(2, 3)])),
    ("three_references", "three sequences share the last block", 4, ([2], 1, [0, 0, 3, 0], [1, 3]),
     ([3], [0, 0, 2, 1], [1], [(2, 3)])),
    ("five_references", "five sequences share the last block", 4, ([2], 2, [0, 0, 5, 0], [1, 3]),
     ([3], [0, 0, 4, 1], [1], [(2, 3)])),
    ("shared_and_full", "the last block is shared and full", 4, ([1, 2], 8, [0, 2, 2, 0], [3]),
     ([1, 2, 3], [0, 2, 2, 1], [], [])),
    ("shared_before", "only an earlier block is shared", 4, ([1, 2], 5, [0, 2, 1, 0], [3]),
     ([1, 2], [0, 2, 1, 0], [3], [])),
    ("none_free", "no block for the next token", 4, ([1, 2], 8, [0, 1, 1, 0], []), None),
    ("none_free_for_the_copy", "no block for the copy", 4, ([1, 2], 7, [0, 2, 2, 0], []), None),
)  # fmt: skip
POOL = 6  # blocks of the pool in other draws, more than in any case by hand


def append_cases(draw: int) -> list[tuple]:
    """The same stories in a larger pool: its blocks have new names, and others use the rest."""
    rng, cases = seeded(0, draw), []
    for *words, block_size, (table, num_tokens, ref_counts, free), after in APPEND_CASES:
        before = table, ref_counts, free, []
        if draw:
            names = new_names(rng, 0, POOL, len(ref_counts))
            pool = rng.integers(1, 10, size=POOL).tolist()
            before, after = (state and _renamed(*state, names, pool) for state in (before, after))
        table, ref_counts, free, _ = before
        cases.append((*words, block_size, (table, num_tokens, ref_counts, free), after))
    return cases


def _renamed(
    table: list[int],
    ref_counts: list[int],
    free: list[int],
    copies: list[tuple[int, int]],
    names: list[int],
    pool: list[int],
) -> tuple[list[int], list[int], list[int], list[tuple[int, int]]]:
    """The same state with other block numbers.

    names  new number of each block
    pool   reference counts of the blocks of the new pool, where nothing else is said
    """
    in_pool = dict(enumerate(pool)) | dict(zip(names, ref_counts, strict=True))
    return (
        [names[block] for block in table],
        list(in_pool.values()),
        [names[block] for block in free],
        [(names[source], names[destination]) for source, destination in copies],
    )
