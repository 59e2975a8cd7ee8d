"""The named cases: each isolates one property, and says what its failure usually means.

A case is a paragraph (see paragraphs.py): its name and how it differs from a problem as it is by
itself; what it isolates; what it means if it fails.
"""

from collections.abc import Iterator
from typing import Any

import torch

from pa_tutorial.paging.layouts import HEAD_SIZES
from pa_tutorial.walk.paragraphs import paragraphs
from pa_tutorial.walk.problem import DecodeProblem, SequenceProblem

Problem = SequenceProblem | DecodeProblem

_HEADS = "Heads are mixed up: query head h reads KV head h // (num_heads // num_kv_heads)."
_SEQUENCE = f"""
one_token steps=(1,)
a sequence of one token
With one token the output is v itself: look at V, the scale and the projections.

one_layer num_layers=1
one layer
Attention itself is wrong: scores, scale, mask or softmax.

two_layers
two layers: the second reads what the first wrote
If layer 0 is right and layer 1 wrong, an earlier position changed when a token came.

prompt_only steps=(12,)
the whole sequence in one step
Prefill is wrong: it is causal attention over the whole prompt.

prompt_of_one_token steps=(1,1,1,1,1,1,1,1)
decode from the first token on
Decode is wrong: the cache, the positions, or the weights that it uses.

chunked_prefill steps=(5,4,3,1)
several new tokens on top of a filled cache
The mask of the new tokens must count the tokens already in the cache.

gqa num_heads=6 num_kv_heads=3
6 query heads share 3 KV heads
{_HEADS}

mqa num_kv_heads=1
4 query heads share one KV head
{_HEADS}

alibi alibi=True
a bias that grows with the distance
The bias of query i and key j is slope * (j - i): 0 for itself, negative for the past.

flat_softmax scores=flat
all weights nearly equal
The mask or the sum is wrong; scores hardly matter here.

sharp_softmax scores=sharp
one weight over one half
The scores are wrong: q, k, the scale, or which key they belong to.

extreme_scores scores=extreme
scores near +300 and -300, by head and position
Each query needs its own maximum, and masked scores must be -inf, not a large number.

long_prompt steps=(130,1,1) num_layers=1 num_kv_heads=2
a prompt of 130 tokens
A loop over the prompt stops early.

gqa_alibi_chunks steps=(5,4,1) num_heads=6 num_kv_heads=2 alibi=True
shared KV heads, distance bias and a filled cache together
Slopes belong to query heads, and distances count from the query's own position.

strided_q strided_q=True
q is a view into a tensor of q, k and v
The stride of q over tokens is ignored.

trained_model steps="{(24,) + (1,) * 16}" trained=True
trained weights on real text
Right on random numbers and wrong here: look for something that depends on size.
"""
_DECODE = f"""
one_token seq_lens=(1,1)
a sequence of one token
With one token the output is v itself: look at V and at the sum of the weights.

many_sequences_of_different_length seq_lens=(1,2,7,8,9,31,64,100) num_heads=6 num_kv_heads=2
eight lengths in one batch
A length or an output row belongs to another sequence.

gqa num_heads=6 num_kv_heads=3
6 query heads share 3 KV heads
{_HEADS}

mqa num_kv_heads=1
4 query heads share one KV head
{_HEADS}

alibi alibi=True
a bias that grows with the distance
The bias of key j is slope * (j - seq_len + 1): 0 for the current token.

gqa_alibi num_heads=6 num_kv_heads=2 alibi=True
6 query heads share 2 KV heads, and each has a slope
Slopes belong to query heads, not to KV heads.

alibi_long_context seq_lens=(4100,) num_heads=2 num_kv_heads=2 dtype=float16 alibi=True
distances up to 4,099, float16
Positions or slopes are stored in a type too narrow to count them.

other_scale scale_factor=0.6
a scale that is not head_size ** -0.5
The scale is an argument; it must be used, once.

flat_softmax scores=flat
all weights nearly equal
The sum of the weights is wrong: tokens are missing or counted twice.

ordinary_softmax
scaled scores about N(0, 1)
The scores (is the scale used, once?) or the weighted sum are wrong.

sharp_softmax scores=sharp
one weight over one half
The scores are wrong: q, k, the scale, or which key they belong to.

deep_negative_scores scores=deep_negative
all scores near -300
exp(-300) is 0 in float32: the true maximum must be subtracted, not 0.

very_deep_negative_scores scores=opposite scale_factor=1e+31
all scores equal, about -1e30
A mask and the first maximum must be -inf: any number in its place can be too large.

huge_scores scores=huge
all scores near 10,000
exp(10,000) is infinite: the maximum must be subtracted before exp.

extreme_scores num_heads=6 num_kv_heads=3 scores=extreme
scores near -300 and +300, by head and by sequence
Every head of every sequence needs its own maximum.

drifting_scores seq_lens=(160,90) scores=drifting
scores rise from -300 to 300 in even heads, and fall in odd ones
The largest score so far changes all the time: what was summed must be rescaled to it.

drifting_over_lanes_and_warps seq_lens=(2,4,8,16,32,48,64,80,96,112,128) num_heads=2 \
num_kv_heads=2 head_size=32 scores=drifting
the largest score is in another lane and warp for each sequence
The maximum is that of all tokens: a thread, a warp or a step of a reduction is left out.

equal_scores scores=equal
all scores equal
Every token must get the weight 1 / seq_len: the output is the mean of V.

long_context_flat seq_lens=(4100,) num_heads=1 num_kv_heads=1 dtype=float16 scores=flat
4,100 tokens of nearly equal weight, float16
Sums over tokens must be float32: float16 stops counting at 2,048.

strided_q strided_q=True
q is a view into a tensor of q, k and v
The stride of q over sequences is ignored.

float16 num_kv_heads=2 dtype=float16
inputs and output in float16
Something between input and output is narrower than float32.

bfloat16 num_kv_heads=2 dtype=bfloat16
inputs and output in bfloat16
Something between input and output is narrower than float32.

deep_negative_scores_float16 head_size=80 dtype=float16 scores=deep_negative
all scores near -300, inputs in float16
The scores are float16 somewhere: near 300 its numbers are 0.25 apart.

deep_negative_scores_bfloat16 head_size=80 dtype=bfloat16 scores=deep_negative
all scores near -300, inputs in bfloat16
The scores are bfloat16 somewhere: near 300 its numbers are 2 apart.

large_values seq_lens=(160,90) dtype=float16 scores=flat values_factor=10000.0
V in the thousands, nearly equal weights, float16
Sums of weight * v must be float32: float16 ends at 65,504.

many_heads seq_lens=(1,40) num_heads=40 num_kv_heads=2 head_size=32 alibi=True
40 query heads, 2 KV heads, each head with a slope
A loop over heads stops early, or heads are counted up to 32 only.

many_sequences seq_lens="{(1, 2, 3) * 23 + (40, 20)}" num_heads=1 num_kv_heads=1 head_size=32
71 sequences, most of 1 to 3 tokens
A loop over sequences stops early, or they are counted up to 64 only.
"""
_DECODE += "".join(
    f"""
head_size_{head_size} head_size={head_size}
every head size of the kernel
A loop over the head dimension stops early or runs over.
"""
    for head_size in HEAD_SIZES
)
# For stages that read a paged cache.
_BLOCKS = """
worked_example seq_lens=(11,) num_kv_heads=2 head_size=32 dtype=float16 rounded_to=0.125 \
block_size=8 tables=((5,2),) called_twice=True
the worked example: 11 tokens in blocks 5 and 2
Go through it by hand: notebook 04 shows its slots, its addresses and its output.

one_full_block seq_lens=(16,32) pad_columns=0
a sequence that fills its block exactly
The number of blocks is seq_len / block_size, rounded up: 16 tokens are one, not two.
The table ends there.

tail seq_lens=(17,31)
last blocks with 1 token and with 15
Only the first seq_len tokens count; the rest of the last block holds NaN.

shuffled_blocks seq_lens=(160,90)
many blocks in random order
Tokens come from other blocks: look up each logical block index in the block table.

long_context seq_lens=(8300,300) num_heads=1 num_kv_heads=1 head_size=32
8,300 tokens in 519 blocks
A loop over tokens, blocks or partitions ends too early, or a table is cut.

shared_blocks seq_lens=(33,40,37) shared_blocks=2
three sequences begin in the same two blocks
A block belongs to more than one sequence; nothing may be written or moved.

stale_slots seq_lens=(17,31,40) stale=True
slots without a token hold old numbers, not NaN
Only the length says where a sequence ends; NaN in the other cases is no mark of it.

stale_slots_far_above seq_lens=(17,31) scores=deep_negative stale=True
all scores near -300, those of stale slots near 0
The maximum is taken over tokens only: exp(-300 - 0) is 0 in float32.

large_block_numbers seq_lens=(20,) num_heads=1 num_kv_heads=1 head_size=32 dtype=float16 \
block_size=8 tables=((66000,5,65900),)
block numbers above 65,535
A block number or a slot is stored in 16 bits.

block_zero_in_use seq_lens=(40,20) block_zero=True
block 0, which pads the tables, holds tokens too
The length says where a table ends, not the first 0 in it.

wide_tables seq_lens=(5,100) pad_columns=9
tables with many more columns than needed
The row of a table is longer than the sequence: use its stride, and stop at seq_len.

gaps_in_the_cache seq_lens=(32,16) num_heads=2 num_kv_heads=2 head_size=32 dtype=float16 gaps=True
K and V of a head lie side by side, with gaps between heads and blocks
The offset of a block or a head comes from the strides of the cache, not from its sizes.

head_size_120_float16 seq_lens=(32,16) head_size=120 dtype=float16
15 pieces of x = 8 numbers
x is 16 / itemsize of the cache: 8 for float16, 4 for float32.

alibi_block_size_8 seq_lens=(70,41) num_heads=6 num_kv_heads=2 alibi=True block_size=8
a bias that grows with the distance, over blocks of 8
The distance counts tokens of the sequence: block index * block_size + offset.

strided_q_float16 seq_lens=(70,41) num_heads=6 num_kv_heads=2 dtype=float16 strided_q=True \
block_size=32
a strided q, float16, shared heads and blocks of 32 together
Each is right alone: look at what two of them share, strides and vec sizes for example.

block_size_8 seq_lens=(70,41) block_size=8
blocks of 8 tokens
The block size is read off the cache; 16 stands somewhere in its place.

block_size_32 seq_lens=(70,41) block_size=32
blocks of 32 tokens
The block size is read off the cache; 16 stands somewhere in its place.
"""


def _problems(kind: type[Problem], text: str, **options: Any) -> Iterator[Problem]:
    for one in paragraphs(text):
        isolates, *meaning = one.sentences
        if dtype := one.options.get("dtype"):
            one.options["dtype"] = getattr(torch, dtype)
        yield kind(one.name, isolates, " ".join(meaning), **one.options, **options)


SEQUENCE_CASES = tuple(_problems(SequenceProblem, _SEQUENCE))
DECODE_CASES = (
    *_problems(DecodeProblem, _DECODE),
    *_problems(DecodeProblem, _BLOCKS, about_blocks=True),
)
CASES: dict[str, Problem] = {case.id: case for case in (*SEQUENCE_CASES, *DECODE_CASES)}

# Carried by hand through notebooks 04 to 12.
WORKED_EXAMPLE: DecodeProblem = CASES["decode/worked_example"]

# The short check of a kernel: of the mistakes kept in tests/wrong, each that is made in a kernel
# fails in one of these cases at least.
_SHORT = """
gqa alibi drifting_scores long_context bfloat16 many_sequences worked_example tail
stale_slots_far_above gaps_in_the_cache head_size_120_float16 alibi_block_size_8 strided_q_float16
"""
SHORT_CHECK = tuple(f"decode/{name}" for name in _SHORT.split())
