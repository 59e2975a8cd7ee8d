"""The cases of a decode step that are about blocks; for stages that read a paged cache."""

import dataclasses

import torch

from pa_tutorial.walk.problem import DecodeProblem

_SHUFFLED = "Tokens come from other blocks: look up each logical block index in the block table."
_CASES = (
    DecodeProblem(
        "worked_example",
        "the worked example: 11 tokens in blocks 5 and 2",
        "Go through it by hand: notebook 04 shows its slots, its addresses and its output.",
        seq_lens=(11,),
        num_kv_heads=2,
        head_size=32,
        dtype=torch.float16,
        rounded_to=0.125,
        block_size=8,
        tables=((5, 2),),
        called_twice=True,
    ),
    DecodeProblem(
        "one_full_block",
        "a sequence that fills its block exactly",
        "The number of blocks is seq_len / block_size, rounded up: 16 tokens are one, not two. "
        "The table ends there.",
        seq_lens=(16, 32),
        pad_columns=0,
    ),
    DecodeProblem(
        "tail",
        "last blocks with 1 token and with 15",
        "Only the first seq_len tokens count; the rest of the last block holds NaN.",
        seq_lens=(17, 31),
    ),
    DecodeProblem(
        "shuffled_blocks",
        "many blocks in random order",
        _SHUFFLED,
        seq_lens=(160, 90),
    ),
    DecodeProblem(
        "long_context",
        "8,300 tokens in 519 blocks",
        "A loop over tokens, blocks or partitions ends too early, or a table is cut.",
        seq_lens=(8300, 300),
        num_heads=1,
        num_kv_heads=1,
        head_size=32,
    ),
    DecodeProblem(
        "shared_blocks",
        "three sequences begin in the same two blocks",
        "A block belongs to more than one sequence; nothing may be written or moved.",
        seq_lens=(33, 40, 37),
        shared_blocks=2,
    ),
    DecodeProblem(
        "stale_slots",
        "slots without a token hold old numbers, not NaN",
        "Only the length says where a sequence ends; NaN in the other cases is no mark of it.",
        seq_lens=(17, 31, 40),
        stale=True,
    ),
    DecodeProblem(
        "stale_slots_far_above",
        "all scores near -300, those of stale slots near 0",
        "The maximum is taken over tokens only: exp(-300 - 0) is 0 in float32.",
        seq_lens=(17, 31),
        scores="deep_negative",
        stale=True,
    ),
    DecodeProblem(
        "large_block_numbers",
        "block numbers above 65,535",
        "A block number or a slot is stored in 16 bits.",
        seq_lens=(20,),
        num_heads=1,
        num_kv_heads=1,
        head_size=32,
        dtype=torch.float16,
        block_size=8,
        tables=((66000, 5, 65900),),
    ),
    DecodeProblem(
        "block_zero_in_use",
        "block 0, which pads the tables, holds tokens too",
        "The length says where a table ends, not the first 0 in it.",
        seq_lens=(40, 20),
        block_zero=True,
    ),
    DecodeProblem(
        "wide_tables",
        "tables with many more columns than needed",
        "The row of a table is longer than the sequence: use its stride, and stop at seq_len.",
        seq_lens=(5, 100),
        pad_columns=9,
    ),
    DecodeProblem(
        "gaps_in_the_cache",
        "K and V of a head lie side by side, with gaps between heads and blocks",
        "The offset of a block or a head comes from the strides of the cache, not from its sizes.",
        seq_lens=(32, 16),
        num_heads=2,
        num_kv_heads=2,
        head_size=32,
        dtype=torch.float16,
        gaps=True,
    ),
    DecodeProblem(
        "head_size_120_float16",
        "15 pieces of x = 8 numbers",
        "x is 16 / itemsize of the cache: 8 for float16, 4 for float32.",
        seq_lens=(32, 16),
        head_size=120,
        dtype=torch.float16,
    ),
    DecodeProblem(
        "alibi_block_size_8",
        "a bias that grows with the distance, over blocks of 8",
        "The distance counts tokens of the sequence: block index * block_size + offset.",
        seq_lens=(70, 41),
        num_heads=6,
        num_kv_heads=2,
        alibi=True,
        block_size=8,
    ),
    DecodeProblem(
        "strided_q_float16",
        "a strided q, float16, shared heads and blocks of 32 together",
        "Each is right alone: look at what two of them share, strides and vec sizes for example.",
        seq_lens=(70, 41),
        num_heads=6,
        num_kv_heads=2,
        dtype=torch.float16,
        strided_q=True,
        block_size=32,
    ),
    *(
        DecodeProblem(
            f"block_size_{block_size}",
            f"blocks of {block_size} tokens",
            "The block size is read off the cache; 16 stands somewhere in its place.",
            seq_lens=(70, 41),
            block_size=block_size,
        )
        for block_size in (8, 32)
    ),
)
BLOCK_CASES = tuple(dataclasses.replace(case, about_blocks=True) for case in _CASES)
