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


CACHE = {(None, (1, 2)): 4, (4, (3, 4)): 7, (7, (5, 6)): 2, (2, (7, 8)): 1,
         (None, (8, 9)): 5, (5, (3, 4)): 6}  # fmt: skip
CACHE_OF_3 = {(None, (1, 2, 3)): 4, (4, (4, 5, 6)): 2}
PREFIX_CASES = (
    ("nothing_known", "a prompt that nobody had before", CACHE, [6, 6, 6], [], 0),
    ("first_block_known", "the prompts part after one block", CACHE, [1, 2, 9, 9, 9], [4], 2),
    ("all_blocks_known", "more tokens follow", CACHE, [1, 2, 3, 4, 5, 6, 7], [4, 7, 2], 6),
    ("four_blocks_known", "a long chain", CACHE, [1, 2, 3, 4, 5, 6, 7, 8, 9], [4, 7, 2, 1], 8),
    ("whole_prompt_known", "nothing follows", CACHE, [1, 2, 3, 4], [4, 7], 3),
    ("same_tokens_other_prefix", "equal tokens after another block", CACHE, [8, 9, 3, 4, 1],
     [5, 6], 4),
    ("middle_unknown", "a known block after an unknown one", CACHE, [1, 2, 0, 0, 8, 9], [4], 2),
    ("tokens_at_another_place", "tokens of a second block come first", CACHE, [3, 4, 5], [], 0),
    ("other_order", "the same tokens in another order", CACHE, [2, 1, 3, 4, 5], [], 0),
    ("other_end", "the first token of a block is the same", CACHE, [1, 9, 3, 4, 5], [], 0),
    ("half_a_block", "too short for a full block", CACHE, [1], [], 0),
    ("blocks_of_3", "blocks of 3 tokens", CACHE_OF_3, [1, 2, 3, 4, 5, 6, 7], [4, 2], 6),
)  # fmt: skip
LATER = ("other_order", "other_end")  # in other draws, after one more block that is known


def prefix_cases(draw: int) -> list[tuple]:
    """The same stories with other tokens and other block numbers."""
    rng, cases = seeded(0, draw), []
    for name, isolates, named, prompt, blocks, saved in PREFIX_CASES:
        if draw:
            block_size = len(next(iter(named))[1])
            tokens = new_names(rng, 0, 256, 20)
            names = new_names(rng, 10, 1000, 10)  # no block of the notebook is among them
            known = tokens[10 : 10 + block_size] if name in LATER else []
            prompt = known + [tokens[token] for token in prompt]
            blocks = [names[block] for block in blocks]
            named = {
                (previous and names[previous], tuple(tokens[t] for t in of_block)): names[block]
                for (previous, of_block), block in named.items()
            }
            if known:
                first = names[0]  # block 0 is in no chain
                named = {(prev or first, of): block for (prev, of), block in named.items()}
                named[None, tuple(known)] = first
                blocks, saved = [first, *blocks], saved + block_size
        cases.append((name, isolates, named, prompt, blocks, saved))
    return cases
