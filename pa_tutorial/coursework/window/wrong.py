"""Answers that must lose points: the solution with one mistake, and a case that must find it."""

from dataclasses import dataclass

from pa_tutorial.coursework.window.changes import Change, with_changes
from pa_tutorial.coursework.window.files import KERNEL, PLAIN, REDUCE, solution_files


@dataclass(frozen=True)
class Wrong:
    """A mistake that people make.

    file      of the solution, in which `old` stands once and is replaced by `new`
    why       what is wrong
    fails     a case of the task that must fail
    also      further changes of the same mistake: (file, old, new)
    """

    file: str
    old: str
    new: str
    why: str
    fails: str
    also: tuple[tuple[str, str, str], ...] = ()

    def files(self) -> dict[str, str]:
        """All files of a student who made this mistake."""
        files = solution_files()
        for file, old, new in ((self.file, self.old, self.new), *self.also):
            files[file] = with_changes(files[file], (Change(old, new),), file)
        return files


_OUTSIDE = "    outside = max(0, table.num_tokens - window + 1) // table.block_size\n"
_FREE = "            table.allocator.free(table.blocks[index])\n"
_NULL = "            table.blocks[index] = NULL_BLOCK\n"
_IF = "        if table.blocks[index] != NULL_BLOCK:\n"
_LET_GO = "    for index in reversed(range(outside)):\n" + _IF + _FREE + _NULL
_APPEND = "    return table.append(token_ids)\n"
_START = "        start_block_idx = max(start_block_idx, first_token_idx // BLOCK_SIZE)\n"
_END = "        end_block_idx = min(start_block_idx + num_blocks_per_partition, num_seq_blocks)\n"
_MASK = "mask = token_idx >= seq_len or token_idx < first_token_idx"
_V_LOOP = """\
        for block_idx in range(start_block_idx + warp_idx, end_block_idx, NUM_WARPS):
            physical_block_number = int64(block_table[block_idx])
            physical_block_offset = (lane"""
_RETURN = "            return  # the window begins behind this partition\n"
_NEUTRAL = """\
            if cuda.threadIdx.x == 0:
                row = int64(seq_idx) * cuda.gridDim.x + cuda.blockIdx.x
                exp_sums[row * max_num_partitions + partition_idx] = float32(0)
"""
_FIRST = "first_token_idx = max(seq_len - WINDOW, 0) if WINDOW > 0 else 0"
_ALL_PARTITIONS = (
    REDUCE,
    "first_partition = first_token_idx // PARTITION_SIZE",
    "first_partition = 0",
)
_READ_MAX = "            value = max_logits[partitions_ptr + i]\n"
_READ_SUM = (
    "            rescaled = exp_sums[partitions_ptr + i] * "
    "math.exp(shared_max_logits[i] - max_logit)\n"
)
_NO_NAN_SUM = """\
            rescaled = exp_sums[partitions_ptr + i]
            if rescaled != rescaled:
                rescaled = float32(0)
            rescaled *= math.exp(shared_max_logits[i] - max_logit)
"""
_READ_OUT = "                acc += to_float(tmp_out[tmp_out_ptr + j * HEAD_SIZE + i]) * weight\n"
_SUM = "range(num_before + thread_idx, num_tokens, NUM_THREADS):\n            val = "
_TAIL = """\
                    if block_idx == num_seq_blocks - 1:
                        for j in range(V_VEC_SIZE):
                            if token_idx + j >= seq_len:
"""
_TAIL_AND_BEFORE = """\
                    if block_idx == num_seq_blocks - 1 or block_idx * BLOCK_SIZE < first_token_idx:
                        for j in range(V_VEC_SIZE):
                            if token_idx + j >= seq_len or token_idx + j < first_token_idx:
"""

BLOCKS_IN_WINDOW = (
    Wrong(PLAIN, "max(seq_len - window, 0) if", "max(seq_len - window - 1, 0) if",
          "one token too many: the newest is not counted", "one_token"),
    Wrong(PLAIN, "max(seq_len - window, 0) if", "(seq_len - window) if",
          "a window that is larger than the sequence begins before token 0", "short_sequence"),
    Wrong(PLAIN, "max(seq_len - window, 0) if window > 0 else 0", "max(seq_len - window, 0)",
          "window = 0 taken for a window of no token", "no_window"),
    Wrong(PLAIN, "first_token_idx // block_size, -(", "-(-first_token_idx // block_size), -(",
          "rounded up: the first block, which is seen in part, is lost", "inside_a_block"),
    Wrong(PLAIN, "-(-seq_len // block_size)\n", "seq_len // block_size + 1\n",
          "one block too many where the last one is full", "full_last_block"),
)  # fmt: skip

V1 = (
    Wrong(KERNEL, _MASK, "mask = token_idx >= seq_len",
          "blocks are skipped, tokens are not masked", "large_score_before"),
    Wrong(KERNEL, _SUM, _SUM.replace("num_before + ", ""),
          "the score 0 of a masked slot is in the sum: exp(0 - qk_max)", "far_below_zero"),
    Wrong(KERNEL, "qk_max = qk_max if mask else max(qk_max, qk)",
          "qk_max = qk_max if token_idx >= seq_len else max(qk_max, qk)",
          "masked slots have a part in the maximum", "large_score_before"),
    Wrong(KERNEL, _FIRST, _FIRST.replace("seq_len - WINDOW", "seq_len - 1 - WINDOW"),
          "one token too many is seen", "one_token"),
    Wrong(KERNEL, "max(start_block_idx, first_token_idx // BLOCK_SIZE)",
          "(seq_len - WINDOW) // BLOCK_SIZE", "a short sequence begins before block 0",
          "mixed_lengths"),
    Wrong(KERNEL, _FIRST, "first_token_idx = max(seq_len - WINDOW, 0)",
          "WINDOW = 0 taken for a window of no token", "with_and_without"),
    Wrong(KERNEL, _START, _START.replace(
        "first_token_idx // BLOCK_SIZE", "(first_token_idx + BLOCK_SIZE - 1) // BLOCK_SIZE"),
          "rounded up: the first block, which is seen in part, is lost", "inside_a_block"),
    Wrong(KERNEL, _START, "", "everything is masked, nothing is skipped", "at_a_block_border"),
    Wrong(KERNEL, _V_LOOP, _V_LOOP.replace("start_block_idx + ", ""),
          "the loop over K skips, the loop over V does not", "skips_v"),
    Wrong(KERNEL, "start_token_idx = start_block_idx * BLOCK_SIZE",
          "start_token_idx = max(start_block_idx * BLOCK_SIZE, first_token_idx)",
          "logits count from the first token that is seen: slots before it come out below 0",
          "inside_a_block"),
)  # fmt: skip

V2 = (
    Wrong(KERNEL, "(partition_idx + 1) * PARTITION_SIZE <= first_token_idx",
          "partition_idx * PARTITION_SIZE < first_token_idx",
          "a partition in which the window begins returns too", "inside_a_partition"),
    Wrong(KERNEL, "(partition_idx + 1) * PARTITION_SIZE <= first_token_idx",
          "(partition_idx + 1) * PARTITION_SIZE < first_token_idx",
          "a partition that ends where the window begins does not return", "partitions_before"),
    Wrong(KERNEL, _RETURN, _NEUTRAL + _RETURN,
          "a partition before the window writes a neutral sum", "partitions_before"),
    Wrong(KERNEL, _END + _START, _START + _END, "the end counts from where the window begins",
          "second_block"),
    Wrong(*_ALL_PARTITIONS, "the reduce kernel reads what was never written", "reduce_alone"),
    Wrong(*_ALL_PARTITIONS, "partitions before the window leave a sum of 0; reduce is untouched",
          "at_a_partition_border", ((KERNEL, _RETURN, _RETURN.replace("return", "pass")),)),
    Wrong(*_ALL_PARTITIONS, "the reduce kernel reads everything, and drops what is NaN",
          "left_over", (
              (REDUCE, _READ_MAX, _READ_MAX + "            if value != value:\n"
               "                value = float32(-FLT_MAX)\n"),
              (REDUCE, _READ_SUM, _NO_NAN_SUM),
              (REDUCE, _READ_OUT, "                if weight > 0:\n    " + _READ_OUT))),
    Wrong(REDUCE, "        if num_partitions == 1:\n",
          "        if num_partitions + first_partition == 1:\n",
          "the only partition is multiplied by its weight, unless it is the first",
          "reduce_copies"),
    Wrong(REDUCE, " + first_partition\n", "\n", "the partitions are counted, and read from the "
          "first place on", "one_partition_left"),
    Wrong(REDUCE, "        tmp_out_ptr = partitions_ptr * HEAD_SIZE\n",
          "        tmp_out_ptr = row * max_num_partitions * HEAD_SIZE\n",
          "outputs are read from the first place on, sums and maxima are not", "reduce_copies"),
    Wrong(REDUCE, "first_partition = first_token_idx // PARTITION_SIZE",
          "first_partition = (first_token_idx + PARTITION_SIZE - 1) // PARTITION_SIZE",
          "rounded up: the partition in which the window begins is lost",
          "one_token_of_a_partition"),
    Wrong(REDUCE, _FIRST, "first_token_idx = max(seq_len - WINDOW, 0)",
          "WINDOW = 0 taken for a window of no token", "with_and_without"),
)  # fmt: skip

APPEND_IN_WINDOW = (
    Wrong(PLAIN, "table.num_tokens - window + 1", "table.num_tokens - window",
          "it forgets that the new token is one of the window", "smallest_pool"),
    Wrong(PLAIN, "table.num_tokens - window + 1", "table.num_tokens + len(token_ids) - window",
          "counted from the last new token: the first one looks back further", "chunk"),
    Wrong(PLAIN, _OUTSIDE + _LET_GO + _APPEND,
          "    appended = table.append(token_ids)\n"
          + _OUTSIDE.replace("table.num_tokens", "table.num_tokens - len(token_ids)")
          + _LET_GO + "    return appended\n",
          "appended first: the blocks that go come too late", "smallest_pool"),
    Wrong(PLAIN, _IF, "        if True:\n", "a block that is gone is given back again", "chunk"),
    Wrong(PLAIN, _NULL, "", "the table still names what it gave back", "any_window"),
    Wrong(PLAIN, _IF, _IF.replace(
        ":\n", " and not table.allocator.is_shared(table.blocks[index]):\n"),
          "a shared block is kept, and its reference with it", "fork"),
    Wrong(PLAIN, _FREE, _FREE + "            table.allocator.forget(table.blocks[index])\n",
          "the names of blocks that were let go are lost", "prefix_cache"),
    Wrong(PLAIN, _LET_GO, _LET_GO + "    del table._names[:outside]\n",
          "later blocks are named as if no token stood before them", "prefix_cache"),
    Wrong(PLAIN, _APPEND, "    return Appended([], table.append(token_ids).slots)\n",
          "the copies of copy-on-write are lost", "fork"),
    Wrong(PLAIN, _LET_GO, "    for block in table.blocks[:outside]:\n"
          "        table.allocator.free(block)\n    del table.blocks[:outside]\n",
          "no null blocks: every later token is looked up in another place", "any_window"),
    Wrong(PLAIN, _OUTSIDE + _LET_GO + _APPEND,
          "    table.slide(max(1, window - 1))\n" + _APPEND,
          "slide takes no window of 0: with a window of one token a block is kept",
          "window_of_one"),
    Wrong(PLAIN, "reversed(range(outside))", "range(outside)",
          "the first block is given back first, so it is evicted first", "last_one_first"),
    Wrong(PLAIN, _APPEND, "    parts = [table.append([token]) for token in token_ids]\n"
          "    return Appended(sum([p.copies for p in parts], []), "
          "sum([p.slots for p in parts], []))\n",
          "token after token: when there is no room, some of them are in", "no_room"),
)  # fmt: skip

SHARED_BYTES = (
    Wrong(PLAIN, "-(-(window - 1) // geometry.BLOCK_SIZE) + 1", "-(-window // geometry.BLOCK_SIZE)",
          "the window may begin at any place of a block", "whole_blocks"),
    Wrong(PLAIN, "-(-(window - 1) // geometry.BLOCK_SIZE) + 1",
          "-(-window // geometry.BLOCK_SIZE) + 1",
          "one block too many for one token more than whole blocks", "one_more"),
    Wrong(PLAIN, "min(num_blocks, touched)", "touched",
          "more blocks than the longest sequence has", "short_sequences"),
    Wrong(PLAIN, "geometry.dynamic_shared_bytes(num_blocks * geometry.BLOCK_SIZE)",
          "4 * num_blocks * geometry.BLOCK_SIZE", "no room for the sums of rows of V",
          "sums_of_v"),
    Wrong(PLAIN, "    if window > 0:\n", "    if True:\n",
          "window = 0 taken for a window of no token", "no_window"),
    Wrong(PLAIN, "        num_blocks = min(num_blocks, touched)\n",
          "        return geometry.dynamic_shared_bytes(min(window, max_seq_len))\n",
          "the window takes the place of the longest sequence", "long_context"),
    Wrong(KERNEL, _START, "", "logits of all tokens: a long context does not fit",
          "long_context"),
)  # fmt: skip

# A kernel that reads everything and masks it, in K and in V: right, and only the cases that count
# bytes may fail.
MASKS_ONLY = (Change(_START, ""), Change(_TAIL, _TAIL_AND_BEFORE))
