"""The kernels of the assignment: the package's own, with pieces of their text replaced.

Nothing is copied: what a student starts from is what pa_tutorial/kernels holds today.
"""

from typing import NamedTuple


class Change(NamedTuple):
    """A piece of a text, and what stands in its place. `old` stands in the text exactly once."""

    old: str
    new: str


def with_changes(text: str, changes: tuple[Change, ...], name: str) -> str:
    """The text with all changes made, one after the other.

    name  of the text, for the message

    Raises ValueError for an `old` that does not stand in the text exactly once.
    """
    for old, new in changes:
        count = text.count(old)
        if count != 1:
            raise ValueError(
                f"{name}: `old` must stand in the text once, it stands there {count} times:\n{old}"
            )
        text = text.replace(old, new)
    return text


# Starter: the kernel as it is, with a window that nothing uses ----------------------------------

WINDOW_ARGUMENT = """\
    window    tokens that the newest query sees, itself included; 0: no window, it sees all
"""

STARTER_KERNEL = (
    Change(
        '"""The kernel: vLLM\'s paged attention, in its order and with its names.\n',
        '"""Your kernel: vLLM\'s paged attention, to which you add a sliding window (TASKS.md).\n',
    ),
    Change(
        """\
    geometry: Geometry, loads: Callable[[Geometry], Loads] = element_loads
) -> Callable:
""",
        """\
    geometry: Geometry,
    loads: Callable[[Geometry], Loads] = element_loads,
    window: int = 0,
) -> Callable:
""",
    ),
    Change('    """The kernel for one geometry, made once.\n',
           '    """The kernel for one geometry and one window, made once.\n'),
    Change(
        "    loads     how vecs are read: element_loads, or one with wider loads\n",
        "    loads     how vecs are read: element_loads, or one with wider loads\n"
        + WINDOW_ARGUMENT,
    ),
    Change(
        "    USE_PARTITIONING = PARTITION_SIZE > 0\n",
        "    USE_PARTITIONING = PARTITION_SIZE > 0\n    WINDOW = window  # your task: use it\n",
    ),
)  # fmt: skip

STARTER_REDUCE = (
    Change(
        '"""v2\'s second kernel: the partitions of a sequence become one output.\n',
        '"""Your reduce kernel: partitions that a window reaches become one output (TASKS.md).\n',
    ),
    Change("def reduce(geometry: Geometry) -> Callable:\n",
           "def reduce(geometry: Geometry, window: int = 0) -> Callable:\n"),
    Change('    """The reduce kernel for one geometry, made once.\n',
           '    """The reduce kernel for one geometry and one window, made once.\n'),
    Change(
        "    geometry  of the kernel that made the partitions; PARTITION_SIZE > 0\n",
        "    geometry  of the kernel that made the partitions; PARTITION_SIZE > 0\n"
        + WINDOW_ARGUMENT,
    ),
    Change(
        "    RED_SMEM_SIZE = 2 * NUM_WARPS\n",
        "    RED_SMEM_SIZE = 2 * NUM_WARPS\n    WINDOW = window  # your task: use it\n",
    ),
)  # fmt: skip


# Solution: what changes in the starter ---------------------------------------------------------

SOLUTION_KERNEL = (
    Change("    WINDOW = window  # your task: use it\n", "    WINDOW = window\n"),
    # The first token, and partitions that do nothing.
    Change(
        """\
            return  # the sequence ends before this partition

""",
        """\
            return  # the sequence ends before this partition
        # The newest query sees [first_token_idx, seq_len). A short sequence is seen from token 0.
        first_token_idx = max(seq_len - WINDOW, 0) if WINDOW > 0 else 0
        if USE_PARTITIONING and (partition_idx + 1) * PARTITION_SIZE <= first_token_idx:
            return  # the window begins behind this partition

""",
    ),
    # Blocks wholly before the window are skipped, and have no logits. The end comes first: it
    # counts from where the partition begins.
    Change(
        """\
        end_block_idx = min(start_block_idx + num_blocks_per_partition, num_seq_blocks)
""",
        """\
        end_block_idx = min(start_block_idx + num_blocks_per_partition, num_seq_blocks)
        start_block_idx = max(start_block_idx, first_token_idx // BLOCK_SIZE)
""",
    ),
    # Slots before the window, in its first block.
    Change(
        "        num_tokens = end_token_idx - start_token_idx\n",
        """\
        num_tokens = end_token_idx - start_token_idx
        # So many slots of the first block hold tokens that stand before the window.
        num_before = max(first_token_idx - start_token_idx, 0)
""",
    ),
    Change(
        """\
                    # A slot behind the sequence gets 0 for its final weight. It has no part in
                    # the maximum, and the loop over num_tokens below leaves it out of the sum.
                    mask = token_idx >= seq_len
""",
        """\
                    # A slot behind the sequence, or before the window, gets 0 for its final
                    # weight. It has no part in the maximum, and the loops from num_before to
                    # num_tokens below leave it out of the sum.
                    mask = token_idx >= seq_len or token_idx < first_token_idx
""",
    ),
    Change(
        """\
        for i in range(thread_idx, num_tokens, NUM_THREADS):
            val = math.exp(logits[i] - qk_max)
""",
        """\
        for i in range(num_before + thread_idx, num_tokens, NUM_THREADS):
            val = math.exp(logits[i] - qk_max)
""",
    ),
    Change(
        """\
        for i in range(thread_idx, num_tokens, NUM_THREADS):
            logits[i] *= inv_sum
""",
        """\
        for i in range(num_before + thread_idx, num_tokens, NUM_THREADS):
            logits[i] *= inv_sum
""",
    ),
)

SOLUTION_REDUCE = (
    Change("    WINDOW = window  # your task: use it\n", "    WINDOW = window\n"),
    Change(
        """\
        num_partitions = (seq_len + PARTITION_SIZE - 1) // PARTITION_SIZE
""",
        """\
        # Only the partitions from first_partition on have left something.
        first_token_idx = max(seq_len - WINDOW, 0) if WINDOW > 0 else 0
        first_partition = first_token_idx // PARTITION_SIZE
        num_partitions = (seq_len + PARTITION_SIZE - 1) // PARTITION_SIZE - first_partition
""",
    ),
    Change(
        "        partitions_ptr = row * max_num_partitions\n",
        "        partitions_ptr = row * max_num_partitions + first_partition\n",
    ),
)
