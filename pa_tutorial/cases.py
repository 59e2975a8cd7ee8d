"""The named cases: each isolates one property, and says what its failure usually means."""

import dataclasses

import torch

from pa_tutorial.problem import HEAD_SIZES, DecodeProblem, SequenceProblem

_HEADS = "Heads are mixed up: query head h reads KV head h // (num_heads // num_kv_heads)."

SEQUENCE_CASES = (
    SequenceProblem(
        "one_token",
        "a sequence of one token",
        "With one token the output is v itself: look at V, the scale and the projections.",
        steps=(1,),
    ),
    SequenceProblem(
        "one_layer",
        "one layer",
        "Attention itself is wrong: scores, scale, mask or softmax.",
        num_layers=1,
    ),
    SequenceProblem(
        "two_layers",
        "two layers: the second reads what the first wrote",
        "If layer 0 is right and layer 1 wrong, an earlier position changed when a token came.",
    ),
    SequenceProblem(
        "prompt_only",
        "the whole sequence in one step",
        "Prefill is wrong: it is causal attention over the whole prompt.",
        steps=(12,),
    ),
    SequenceProblem(
        "prompt_of_one_token",
        "decode from the first token on",
        "Decode is wrong: the cache, the positions, or the weights that it uses.",
        steps=(1,) * 8,
    ),
    SequenceProblem(
        "chunked_prefill",
        "several new tokens on top of a filled cache",
        "The mask of the new tokens must count the tokens already in the cache.",
        steps=(5, 4, 3, 1),
    ),
    SequenceProblem("gqa", "6 query heads share 3 KV heads", _HEADS, num_heads=6, num_kv_heads=3),
    SequenceProblem("mqa", "4 query heads share one KV head", _HEADS, num_kv_heads=1),
    SequenceProblem(
        "alibi",
        "a bias that grows with the distance",
        "The bias of query i and key j is slope * (j - i): 0 for itself, negative for the past.",
        alibi=True,
    ),
    SequenceProblem(
        "flat_softmax",
        "all weights nearly equal",
        "The mask or the sum is wrong; scores hardly matter here.",
        scores="flat",
    ),
    SequenceProblem(
        "sharp_softmax",
        "one weight over one half",
        "The scores are wrong: q, k, the scale, or which key they belong to.",
        scores="sharp",
    ),
    SequenceProblem(
        "extreme_scores",
        "scores near +300 and -300, by head and position",
        "Each query needs its own maximum, and masked scores must be -inf, not a large number.",
        scores="extreme",
    ),
    SequenceProblem(
        "long_prompt",
        "a prompt of 130 tokens",
        "A loop over the prompt stops early.",
        steps=(130, 1, 1),
        num_layers=1,
        num_kv_heads=2,
    ),
    SequenceProblem(
        "gqa_alibi_chunks",
        "shared KV heads, distance bias and a filled cache together",
        "Slopes belong to query heads, and distances count from the query's own position.",
        steps=(5, 4, 1),
        num_heads=6,
        num_kv_heads=2,
        alibi=True,
    ),
    SequenceProblem(
        "strided_q",
        "q is a view into a tensor of q, k and v",
        "The stride of q over tokens is ignored.",
        strided_q=True,
    ),
    SequenceProblem(
        "trained_model",
        "trained weights on real text",
        "Right on random numbers and wrong here: look for something that depends on size.",
        steps=(24,) + (1,) * 16,
        trained=True,
    ),
)

DECODE_CASES = (
    DecodeProblem(
        "one_token",
        "a sequence of one token",
        "With one token the output is v itself: look at V and at the sum of the weights.",
        seq_lens=(1, 1),
    ),
    DecodeProblem(
        "many_sequences_of_different_length",
        "eight lengths in one batch",
        "A length or an output row belongs to another sequence.",
        seq_lens=(1, 2, 7, 8, 9, 31, 64, 100),
        num_heads=12,
        num_kv_heads=2,
    ),
    DecodeProblem("gqa", "6 query heads share 3 KV heads", _HEADS, num_heads=6, num_kv_heads=3),
    DecodeProblem("mqa", "4 query heads share one KV head", _HEADS, num_kv_heads=1),
    DecodeProblem(
        "alibi",
        "a bias that grows with the distance",
        "The bias of key j is slope * (j - seq_len + 1): 0 for the current token.",
        alibi=True,
    ),
    DecodeProblem(
        "gqa_alibi",
        "6 query heads share 2 KV heads, and each has a slope",
        "Slopes belong to query heads, not to KV heads.",
        num_heads=6,
        num_kv_heads=2,
        alibi=True,
    ),
    DecodeProblem(
        "alibi_long_context",
        "distances up to 4,099, float16",
        "Positions or slopes are stored in a type too narrow to count them.",
        seq_lens=(4100,),
        num_heads=2,
        num_kv_heads=2,
        dtype=torch.float16,
        alibi=True,
    ),
    DecodeProblem(
        "other_scale",
        "a scale that is not head_size ** -0.5",
        "The scale is an argument; it must be used, once.",
        scale_factor=0.6,
    ),
    DecodeProblem(
        "flat_softmax",
        "all weights nearly equal",
        "The sum of the weights is wrong: tokens are missing or counted twice.",
        scores="flat",
    ),
    DecodeProblem(
        "ordinary_softmax",
        "scaled scores about N(0, 1)",
        "The scores (is the scale used, once?) or the weighted sum are wrong.",
    ),
    DecodeProblem(
        "sharp_softmax",
        "one weight over one half",
        "The scores are wrong: q, k, the scale, or which key they belong to.",
        scores="sharp",
    ),
    DecodeProblem(
        "deep_negative_scores",
        "all scores near -300",
        "exp(-300) is 0 in float32: the true maximum must be subtracted, not 0.",
        scores="deep_negative",
    ),
    DecodeProblem(
        "huge_scores",
        "all scores near 10,000",
        "exp(10,000) is infinite: the maximum must be subtracted before exp.",
        scores="huge",
    ),
    DecodeProblem(
        "extreme_scores",
        "scores near -300 in even heads, +300 in odd ones",
        "Every head needs its own maximum.",
        scores="extreme",
    ),
    DecodeProblem(
        "equal_scores",
        "all scores equal",
        "Every token must get the weight 1 / seq_len: the output is the mean of V.",
        scores="equal",
    ),
    DecodeProblem(
        "long_context",
        "4,100 tokens",
        "The sum over tokens loses precision, or a length is cut.",
        seq_lens=(4100, 2050),
        num_heads=2,
        num_kv_heads=2,
    ),
    DecodeProblem(
        "long_context_flat",
        "4,100 tokens of nearly equal weight, float16",
        "Sums over tokens must be float32: float16 stops counting at 2,048.",
        seq_lens=(4100, 2050),
        num_heads=2,
        num_kv_heads=2,
        dtype=torch.float16,
        scores="flat",
    ),
    DecodeProblem(
        "strided_q",
        "q is a view into a tensor of q, k and v",
        "The stride of q over sequences is ignored.",
        strided_q=True,
    ),
    DecodeProblem(
        "float16",
        "inputs and output in float16",
        "Something between input and output is narrower than float32.",
        num_kv_heads=2,
        dtype=torch.float16,
    ),
    DecodeProblem(
        "bfloat16",
        "inputs and output in bfloat16",
        "Something between input and output is narrower than float32.",
        num_kv_heads=2,
        dtype=torch.bfloat16,
    ),
    DecodeProblem(
        "deep_negative_scores_float16",
        "all scores near -300, inputs in float16",
        "The scores are float16 somewhere: near 300 its numbers are 0.25 apart.",
        dtype=torch.float16,
        scores="deep_negative",
    ),
    DecodeProblem(
        "deep_negative_scores_bfloat16",
        "all scores near -300, inputs in bfloat16",
        "The scores are bfloat16 somewhere: near 300 its numbers are 2 apart.",
        dtype=torch.bfloat16,
        scores="deep_negative",
    ),
    *(
        DecodeProblem(
            f"head_size_{head_size}",
            "every head size of the kernel",
            "A loop over the head dimension stops early or runs over.",
            head_size=head_size,
        )
        for head_size in HEAD_SIZES
    ),
)

_SHUFFLED = "Tokens come from other blocks: look up each logical block index in the block table."
BLOCK_CASES = (
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
    ),
    DecodeProblem(
        "one_full_block",
        "a sequence that fills its block exactly",
        "The number of blocks is seq_len / block_size, rounded up: 16 tokens are one, not two.",
        seq_lens=(16, 32),
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
        "large_block_numbers",
        "block numbers above 32,767",
        "A block number or a slot is stored in 16 bits.",
        seq_lens=(20,),
        num_heads=1,
        num_kv_heads=1,
        head_size=32,
        dtype=torch.float16,
        block_size=8,
        tables=((33000, 5, 32900),),
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
DECODE_CASES += tuple(dataclasses.replace(case, about_blocks=True) for case in BLOCK_CASES)

Problem = SequenceProblem | DecodeProblem
CASES: dict[str, Problem] = {case.id: case for case in (*SEQUENCE_CASES, *DECODE_CASES)}

# Carried by hand through notebooks 04 to 12.
WORKED_EXAMPLE: DecodeProblem = CASES["decode/worked_example"]
