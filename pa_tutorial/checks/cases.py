"""The named cases: each isolates one property, and says what must hold for it to pass.

A case says how it differs from a problem with all defaults (problem.py), then what it isolates and
what must hold. Many different mistakes can break a case, so it states a rule, not a mistake.
"""

from dataclasses import replace

from torch import bfloat16, float8_e4m3fn, float8_e5m2, float16

from pa_tutorial.checks.problem import DecodeProblem, SequenceProblem
from pa_tutorial.paging.layouts import HEAD_SIZES

Problem = SequenceProblem | DecodeProblem

_HEADS = "Query head h reads KV head h // (num_heads // num_kv_heads)."
_SHARP = "Each query has one large weight, which must belong to the right token."
_HEAD_SIZE = "All head_size elements of q, k and v take part, and none beyond them."
_ONE_HEAD = {"num_heads": 1, "num_kv_heads": 1, "head_size": 32}
_SIX_HEADS = {"num_heads": 6, "num_kv_heads": 2}

SEQUENCE_CASES = (
    SequenceProblem("one_token", steps=(1,)).isolating(
        "a sequence of one token",
        "With one token, the score is scale * q . k, the weight 1, the output v of the KV head.",
    ),
    SequenceProblem("one_layer", num_layers=1).isolating(
        "one layer",
        "Nothing is special here. Scores, scale, mask, softmax and cache must be right.",
    ),
    SequenceProblem("two_layers").isolating(
        "two layers: the second reads what the first wrote",
        "Each layer has its own K and V, and a new token changes no earlier position.",
    ),
    SequenceProblem("prompt_only", steps=(12,)).isolating(
        "the whole sequence in one step", "Prefill is causal attention over the whole prompt."
    ),
    SequenceProblem("prompt_of_one_token", steps=(1,) * 8).isolating(
        "decode from the first token on",
        "Each step has one query, which sees all tokens in the cache and its own.",
    ),
    SequenceProblem("chunked_prefill", steps=(5, 4, 3, 1)).isolating(
        "several new tokens on top of a filled cache",
        "The mask of the new tokens must count the tokens already in the cache.",
    ),
    SequenceProblem("gqa", num_heads=6, num_kv_heads=3).isolating(
        "6 query heads share 3 KV heads", _HEADS
    ),
    SequenceProblem("mqa", num_kv_heads=1).isolating("4 query heads share one KV head", _HEADS),
    SequenceProblem("alibi", alibi=True).isolating(
        "a bias that grows with the distance",
        "The bias of head h is slopes[h] * (j - i) for query i and key j: never positive.",
    ),
    SequenceProblem("flat_softmax", scores="flat").isolating(
        "all weights nearly equal",
        "Each token that a query sees counts once; the scores hardly matter.",
    ),
    SequenceProblem("sharp_softmax", scores="sharp").isolating("one weight over one half", _SHARP),
    SequenceProblem("extreme_scores", scores="extreme").isolating(
        "scores near +300 and -300, by head and position",
        "exp takes each score minus the maximum of its query, unchanged; masked scores are -inf.",
    ),
    SequenceProblem("long_prompt", steps=(130, 1, 1), num_layers=1, num_kv_heads=2).isolating(
        "a prompt of 130 tokens", "All 130 tokens take part."
    ),
    SequenceProblem("gqa_alibi_chunks", steps=(5, 4, 1), alibi=True, **_SIX_HEADS).isolating(
        "shared KV heads, distance bias and a filled cache together",
        "Slopes are float32, one per query head; distances count from the query's position.",
    ),
    SequenceProblem("strided_q", strided_q=True).isolating(
        "q is a view into a tensor of q, k and v", "Tokens of q are q.stride(0) elements apart."
    ),
    SequenceProblem("trained_model", steps=(24,) + (1,) * 16, trained=True).isolating(
        "trained weights on real text",
        "The weights are a trained model's; the prompt has 24 tokens, and 16 are decoded.",
    ),
)
_DECODE = (
    DecodeProblem("one_token", seq_lens=(1, 1)).isolating(
        "a sequence of one token",
        "Each sequence has its own token: the score is scale * q . k, the weight 1, the output v. "
        "No other slot counts.",
    ),
    DecodeProblem("ordinary_softmax").isolating(
        "scaled scores about N(0, 1)",
        "Nothing is special here. Every token takes part once, with its score, weight and v.",
    ),
    DecodeProblem(
        "many_sequences_of_different_length", seq_lens=(1, 2, 7, 8, 9, 31, 64, 100), **_SIX_HEADS
    ).isolating(
        "eight lengths in one batch",
        "Each sequence has its own query, output and length, up to 100; 6 heads share 2 KV heads.",
    ),
    DecodeProblem("gqa", num_heads=6, num_kv_heads=3).isolating(
        "6 query heads share 3 KV heads", _HEADS
    ),
    DecodeProblem("mqa", num_kv_heads=1).isolating("4 query heads share one KV head", _HEADS),
    DecodeProblem("alibi", alibi=True).isolating(
        "a bias that grows with the distance",
        "The bias of head h and key j is slopes[h] * (j - seq_len + 1): 0 for the current token.",
    ),
    DecodeProblem("gqa_alibi", alibi=True, **_SIX_HEADS).isolating(
        "6 query heads share 2 KV heads, and each has a slope",
        "Slopes belong to query heads, not to KV heads.",
    ),
    DecodeProblem(
        "alibi_long_context",
        seq_lens=(4100,),
        num_heads=2,
        num_kv_heads=2,
        dtype=float16,
        alibi=True,
    ).isolating(
        "distances up to 4,099, float16",
        "All 4,100 tokens take part; their elements have 2 bytes. Slopes and distances must be "
        "float32: float16 stops counting at 2,048.",
    ),
    DecodeProblem("other_scale", scale_factor=0.6).isolating(
        "a scale that is not head_size ** -0.5", "The scale is an argument; it must be used once."
    ),
    DecodeProblem("flat_softmax", scores="flat").isolating(
        "all weights nearly equal", "Every token takes part once, with nearly the same weight."
    ),
    DecodeProblem("sharp_softmax", scores="sharp").isolating("one weight over one half", _SHARP),
    DecodeProblem("deep_negative_scores", scores="deep_negative").isolating(
        "all scores near -300",
        "exp(-300) is 0 in float32: subtract the true maximum, without losing small differences.",
    ),
    DecodeProblem("very_deep_negative_scores", scores="opposite", scale_factor=1e31).isolating(
        "all scores equal, about -1e30",
        "Masked scores and the initial maximum must be -inf: any number instead can be too large.",
    ),
    DecodeProblem("huge_scores", scores="huge").isolating(
        "all scores near 10,000",
        "exp(10,000) is infinite: subtract the maximum first, without losing small differences.",
    ),
    DecodeProblem("extreme_scores", num_heads=6, num_kv_heads=3, scores="extreme").isolating(
        "scores near -300 and +300, by head and by sequence",
        "Every head of every sequence needs its own maximum.",
    ),
    DecodeProblem("drifting_scores", seq_lens=(160, 90), scores="drifting").isolating(
        "scores rise from -300 to 300 in even heads, and fall in odd ones",
        "All 160 tokens take part. The largest score so far keeps changing, and the sums so far "
        "must be rescaled to it.",
    ),
    DecodeProblem(
        "drifting_over_lanes_and_warps",
        seq_lens=(2, 4, 8, 16, 32, 48, 64, 80, 96, 112, 128),
        num_heads=2,
        num_kv_heads=2,
        scores="drifting",
    ).isolating(
        "the largest score is in another lane and warp for each sequence",
        "The maximum is over all tokens of a sequence, whichever thread, warp or block has it.",
    ),
    DecodeProblem("equal_scores", scores="equal").isolating(
        "all scores equal",
        "Every token must get the weight 1 / seq_len, so the output is the mean of V.",
    ),
    DecodeProblem(
        "long_context_flat",
        seq_lens=(4100,),
        num_heads=1,
        num_kv_heads=1,
        dtype=float16,
        scores="flat",
    ).isolating(
        "4,100 tokens of nearly equal weight, float16",
        "All 4,100 tokens take part. Sums must be float32: float16 stops counting at 2,048.",
    ),
    DecodeProblem("strided_q", strided_q=True).isolating(
        "q is a view into a tensor of q, k and v", "Sequences of q are q.stride(0) elements apart."
    ),
    DecodeProblem("float16", num_kv_heads=2, dtype=float16).isolating(
        "inputs and output in float16",
        "Elements have 2 bytes; everything between input and output is float32.",
    ),
    DecodeProblem("bfloat16", num_kv_heads=2, dtype=bfloat16).isolating(
        "inputs and output in bfloat16",
        "Elements have 2 bytes; everything between input and output is float32.",
    ),
    DecodeProblem(
        "deep_negative_scores_float16", head_size=80, dtype=float16, scores="deep_negative"
    ).isolating(
        "all scores near -300, inputs in float16",
        "head_size is 80. Scores must be float32: near 300, float16 numbers are 0.25 apart.",
    ),
    DecodeProblem(
        "deep_negative_scores_bfloat16", head_size=80, dtype=bfloat16, scores="deep_negative"
    ).isolating(
        "all scores near -300, inputs in bfloat16",
        "head_size is 80. Scores must be float32: near 300, bfloat16 numbers are 2 apart.",
    ),
    DecodeProblem(
        "large_values", seq_lens=(160, 90), dtype=float16, scores="flat", values_factor=1e4
    ).isolating(
        "V in the thousands, nearly equal weights, float16",
        "Sums of weight * v must be float32: float16 ends at 65,504.",
    ),
    DecodeProblem(
        "many_heads", seq_lens=(1, 40), num_heads=40, num_kv_heads=2, head_size=32, alibi=True
    ).isolating(
        "40 query heads, 2 KV heads, each head with a slope",
        "All 40 query heads take part, each with its slope and its KV head.",
    ),
    DecodeProblem(
        "many_sequences", seq_lens=(1, 2, 3) * 23 + (40, 20), num_heads=1, num_kv_heads=1
    ).isolating(
        "71 sequences, most of 1 to 3 tokens",
        "All 71 sequences take part, each with its own query, tokens and output.",
    ),
    *(
        DecodeProblem(f"head_size_{head_size}", head_size=head_size).isolating(
            "every head size of the kernel", _HEAD_SIZE
        )
        for head_size in HEAD_SIZES
    ),
)
# For stages that read a paged cache.
_BLOCKS = (
    DecodeProblem(
        "worked_example",
        seq_lens=(11,),
        num_kv_heads=2,
        head_size=32,
        dtype=float16,
        rounded_to=0.125,
        block_size=8,
        tables=((5, 2),),
        called_twice=True,
    ).isolating(
        "the worked example: 11 tokens in blocks 5 and 2",
        "Go through it by hand: notebook 04 shows its slots, its addresses and its output.",
    ),
    DecodeProblem("one_full_block", seq_lens=(16, 32), pad_columns=0).isolating(
        "a sequence that fills its block exactly",
        "The number of blocks is seq_len / block_size, rounded up: 16 tokens take one, not two. "
        "The table ends there.",
    ),
    DecodeProblem("tail", seq_lens=(17, 31)).isolating(
        "last blocks with 1 token and with 15",
        "Only the first seq_len tokens count; the rest of the last block holds NaN.",
    ),
    DecodeProblem("shuffled_blocks", seq_lens=(160, 90)).isolating(
        "many blocks in random order",
        "Look up each logical block index in the block table; the up to 10 blocks are in no order.",
    ),
    DecodeProblem(
        "long_context",
        seq_lens=(4200, 300),
        dtype=float16,
        partition_size=144,  # more tokens than threads, so that a thread has several
        **_ONE_HEAD,
    ).isolating(
        "4,200 tokens in 263 blocks, float16",
        "All tokens of all blocks and partitions take part, and sums over them are float32.",
    ),
    DecodeProblem("shared_blocks", seq_lens=(33, 40, 37), shared_blocks=2).isolating(
        "three sequences begin in the same two blocks",
        "A block may belong to several sequences; nothing may be written or moved.",
    ),
    DecodeProblem("stale_slots", seq_lens=(17, 31, 40), stale=True).isolating(
        "slots without a token hold old numbers, not NaN",
        "Only the length says where a sequence ends; don't rely on the NaN of the other cases.",
    ),
    DecodeProblem(
        "stale_slots_far_above", seq_lens=(17, 31), scores="deep_negative", stale=True
    ).isolating(
        "all scores near -300, but near 0 in stale slots",
        "The maximum is over tokens only: with a stale 0 in it, exp(-300 - 0) is 0 in float32.",
    ),
    DecodeProblem(
        "large_block_numbers",
        seq_lens=(20,),
        dtype=float16,
        block_size=8,
        tables=((66000, 5, 65900),),
        **_ONE_HEAD,
    ).isolating(
        "block numbers above 65,535", "Block numbers and slots need more than 16 bits here."
    ),
    DecodeProblem("block_zero_in_use", seq_lens=(40, 20), block_zero=True).isolating(
        "block 0, which pads the tables, holds tokens too",
        "The length says where a table ends, not the first 0 in it.",
    ),
    DecodeProblem("wide_tables", seq_lens=(5, 100), pad_columns=9).isolating(
        "tables with many more columns than needed",
        "A row of the table is longer than its sequence: use the stride, and stop at seq_len.",
    ),
    DecodeProblem(
        "gaps_in_the_cache",
        seq_lens=(32, 16),
        num_heads=2,
        num_kv_heads=2,
        head_size=32,
        dtype=float16,
        gaps=True,
    ).isolating(
        "K and V of a head are side by side, with gaps between heads and blocks",
        "The offset of a block or a head follows from the strides of the cache, not its sizes.",
    ),
    DecodeProblem(
        "head_size_120_float16", seq_lens=(32, 16), head_size=120, dtype=float16
    ).isolating(
        "15 pieces of x = 8 numbers",
        "All 15 pieces of a key take part; x is 16 / itemsize: 8 for float16, 4 for float32.",
    ),
    DecodeProblem(
        "alibi_block_size_8", seq_lens=(70, 41), alibi=True, block_size=8, **_SIX_HEADS
    ).isolating(
        "a bias that grows with the distance, over blocks of 8",
        "Slopes belong to query heads; distances count tokens: block index * block_size + offset.",
    ),
    DecodeProblem(
        "strided_q_float16",
        seq_lens=(70, 41),
        dtype=float16,
        strided_q=True,
        block_size=32,
        head_size=32,
        **_SIX_HEADS,
    ).isolating(
        "a strided q, float16, shared heads and blocks of 32 together",
        "Sequences of q are q.stride(0) elements apart, in float16 and with shared heads too.",
    ),
    DecodeProblem("block_size_8", seq_lens=(70, 41), block_size=8).isolating(
        "blocks of 8 tokens", "The block size is the cache's: 8 here, not 16."
    ),
    DecodeProblem("block_size_32", seq_lens=(70, 41), block_size=32).isolating(
        "blocks of 32 tokens", "The block size is the cache's: 32 here, not 16."
    ),
    DecodeProblem(
        "more_vecs_than_groups",
        seq_lens=(70, 5),
        num_heads=2,
        num_kv_heads=1,
        head_size=192,
        block_size=8,
    ).isolating(
        "heads of 192 in blocks of 8, float32: 48 vecs per thread, 32 thread groups",
        "All 192 elements take part: a group brings every 32nd vec of q, not just one, and 128 "
        "threads need a second turn for one head.",
    ),
    DecodeProblem(
        "more_partitions_than_threads",
        seq_lens=(1045, 9),
        dtype=float16,
        block_size=8,
        partition_size=8,
        **_ONE_HEAD,
    ).isolating(
        "1,045 tokens in blocks of 8; in a stage with partitions, 131 of them",
        "All partitions take part: with more of them than threads, a thread merges several.",
    ),
)

_FLOAT8 = (
    DecodeProblem(
        "float8_e4m3",
        seq_lens=(70, 41),
        dtype=float16,
        scores="sharp",
        cache_dtype=float8_e4m3fn,
        k_scale=(0.06, 0.003),
        v_scale=(0.02, 0.3),
        num_kv_heads=2,
    ).isolating(
        "an 8-bit cache (e4m3), with a scale per KV head for K and for V",
        "x is 16 here. A number is its byte, decoded, times the scale of its KV head: k_scale for "
        "K, v_scale for V, once each. Beyond 448 the largest number is stored.",
    ),
    DecodeProblem(
        "float8_e5m2",
        seq_lens=(33, 20),
        cache_dtype=float8_e5m2,
        block_size=8,
        k_scale=(0.5, 2.0),
        v_scale=(0.25, 0.125),
        num_kv_heads=2,
    ).isolating(
        "an 8-bit cache (e5m2) under float32 queries, blocks of 8",
        "e5m2 has 5 bits of exponent and 2 of mantissa; e4m3 has 4 and 3.",
    ),
)

DECODE_CASES = (*_DECODE, *(replace(case, about_blocks=True) for case in (*_BLOCKS, *_FLOAT8)))
CASES: dict[str, Problem] = {case.id: case for case in (*SEQUENCE_CASES, *DECODE_CASES)}

# Notebooks 04 to 14 follow this one by hand.
WORKED_EXAMPLE: DecodeProblem = CASES["decode/worked_example"]

# The short check of a kernel: every kernel mistake in tests/wrong fails at least one of these
# cases. The order matters: if a mistake breaks most cases, the first to report it should be one
# that isolates little.
_SHORT = """
worked_example ordinary_softmax tail other_scale gqa alibi drifting_scores
drifting_over_lanes_and_warps very_deep_negative_scores stale_slots_far_above bfloat16
many_sequences block_zero_in_use gaps_in_the_cache head_size_256 head_size_120_float16
alibi_block_size_8 strided_q_float16 more_vecs_than_groups long_context
more_partitions_than_threads float8_e4m3 float8_e5m2
"""
SHORT_CHECK = tuple(f"decode/{name}" for name in _SHORT.split())
