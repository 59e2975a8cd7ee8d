"""The named cases: each isolates one property, and says what its failure usually means."""

import torch

from pa_tutorial.walk.block_cases import BLOCK_CASES
from pa_tutorial.walk.problem import HEAD_SIZES, DecodeProblem, SequenceProblem

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
        num_heads=6,
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
        "very_deep_negative_scores",
        "all scores equal, about -1e30",
        "A mask and the first maximum must be -inf: any number in its place can be too large.",
        scores="opposite",
        scale_factor=1e31,
    ),
    DecodeProblem(
        "huge_scores",
        "all scores near 10,000",
        "exp(10,000) is infinite: the maximum must be subtracted before exp.",
        scores="huge",
    ),
    DecodeProblem(
        "extreme_scores",
        "scores near -300 and +300, by head and by sequence",
        "Every head of every sequence needs its own maximum.",
        num_heads=6,
        num_kv_heads=3,
        scores="extreme",
    ),
    DecodeProblem(
        "drifting_scores",
        "scores rise from -300 to 300 in even heads, and fall in odd ones",
        "The largest score so far changes all the time: what was summed must be rescaled to it.",
        seq_lens=(160, 90),
        scores="drifting",
    ),
    DecodeProblem(
        "drifting_over_lanes_and_warps",
        "the largest score is in another lane and warp for each sequence",
        "The maximum is that of all tokens: a thread, a warp or a step of a reduction is left out.",
        seq_lens=(2, 4, 8, 16, 32, 48, 64, 80, 96, 112, 128),
        num_heads=2,
        num_kv_heads=2,
        head_size=32,
        scores="drifting",
    ),
    DecodeProblem(
        "equal_scores",
        "all scores equal",
        "Every token must get the weight 1 / seq_len: the output is the mean of V.",
        scores="equal",
    ),
    DecodeProblem(
        "long_context_flat",
        "4,100 tokens of nearly equal weight, float16",
        "Sums over tokens must be float32: float16 stops counting at 2,048.",
        seq_lens=(4100,),
        num_heads=1,
        num_kv_heads=1,
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
        head_size=80,
        dtype=torch.float16,
        scores="deep_negative",
    ),
    DecodeProblem(
        "deep_negative_scores_bfloat16",
        "all scores near -300, inputs in bfloat16",
        "The scores are bfloat16 somewhere: near 300 its numbers are 2 apart.",
        head_size=80,
        dtype=torch.bfloat16,
        scores="deep_negative",
    ),
    DecodeProblem(
        "large_values",
        "V in the thousands, nearly equal weights, float16",
        "Sums of weight * v must be float32: float16 ends at 65,504.",
        seq_lens=(160, 90),
        dtype=torch.float16,
        scores="flat",
        values_factor=10_000.0,
    ),
    DecodeProblem(
        "many_heads",
        "40 query heads, 2 KV heads, each head with a slope",
        "A loop over heads stops early, or heads are counted up to 32 only.",
        seq_lens=(1, 40),
        num_heads=40,
        num_kv_heads=2,
        head_size=32,
        alibi=True,
    ),
    DecodeProblem(
        "many_sequences",
        "71 sequences, most of 1 to 3 tokens",
        "A loop over sequences stops early, or they are counted up to 64 only.",
        seq_lens=(1, 2, 3) * 23 + (40, 20),
        num_heads=1,
        num_kv_heads=1,
        head_size=32,
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

DECODE_CASES += BLOCK_CASES

Problem = SequenceProblem | DecodeProblem
CASES: dict[str, Problem] = {case.id: case for case in (*SEQUENCE_CASES, *DECODE_CASES)}

# Carried by hand through notebooks 04 to 12.
WORKED_EXAMPLE: DecodeProblem = CASES["decode/worked_example"]

# The short check of a kernel: of the mistakes kept in tests/wrong, each that is made in a kernel
# fails in one of these cases at least.
SHORT_CHECK = (
    "decode/gqa",
    "decode/alibi",
    "decode/drifting_scores",
    "decode/long_context",
    "decode/bfloat16",
    "decode/many_sequences",
    "decode/worked_example",
    "decode/tail",
    "decode/stale_slots_far_above",
    "decode/gaps_in_the_cache",
    "decode/head_size_120_float16",
    "decode/alibi_block_size_8",
    "decode/strided_q_float16",
)
