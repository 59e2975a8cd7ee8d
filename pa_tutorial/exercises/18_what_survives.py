"""Exercises of notebook 18: bytes of a token, attention over latents, tables that only grow."""

from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from torch import Tensor

from pa_tutorial.attention.work import TensorsMade
from pa_tutorial.checks.running import Trial
from pa_tutorial.exercises.exercise import Exercise, require_shape
from pa_tutorial.exercises.what_survives_grading import (
    LATENT_CASES,
    SIZE_CASES,
    TABLE_CASES,
    LatentCase,
    blocks_of_tables,
    bytes_of_tensors,
    config_of,
    expanded_output,
    latent_inputs,
    requests_of,
)
from pa_tutorial.walk.calls import AnswerError, require_written

NOTEBOOK = "18_what_survives"
CLOSE = 1e-5  # relative; float32 sums in another order


# 1. ---------------------------------------------------------------------------------------------


def bytes_per_token(config: dict[str, int], bytes_per_number: int) -> int:
    """What all layers of a model keep of one token, in bytes.

    config   some entries of a checkpoint's config.json, by their names there:
             num_hidden_layers, num_attention_heads; and
             for MLA  kv_lora_rank (the size of the latent), qk_rope_head_dim
             else     num_key_value_heads (left out: as many as query heads), and head_dim (left
                      out: hidden_size divided among the query heads)
    """
    # 1. MLA is recognised by kv_lora_rank: one row for all heads, and it is K and V at once
    # 2. else K and V of each KV head
    # 3. all layers, bytes
    ### BEGIN SOLUTION
    heads = config["num_attention_heads"]
    if "kv_lora_rank" in config:
        numbers = config["kv_lora_rank"] + config["qk_rope_head_dim"]
    else:
        head_dim = config.get("head_dim") or config["hidden_size"] // heads
        numbers = 2 * config.get("num_key_value_heads", heads) * head_dim
    return config["num_hidden_layers"] * numbers * bytes_per_number
    ### END SOLUTION


def bytes_per_token_trials(draw: int = 0) -> list[Trial]:
    def run(sizes: dict, function: Callable | None) -> dict[str, Tensor]:
        answer = bytes_per_token if function is None else function
        found = require_written(answer(config_of(sizes), sizes["itemsize"]))
        if not isinstance(found, int):
            raise AnswerError(f"it returned {found!r:.40}; it must return a whole number of bytes")
        return {"out": torch.tensor([float(found)], dtype=torch.float64)}

    rng = np.random.default_rng((181, draw)) if draw else None
    cases = [(*words, sizes(rng)) for *words, sizes in SIZE_CASES]
    return [
        Trial(
            *words,
            run=partial(run, sizes),
            references={"tensors of these sizes": partial(bytes_of_tensors, sizes)},
            bounds={"out": 0.0},
            axes=("bytes",),
        )
        for *words, sizes in cases
    ]


SIZES = Exercise(
    notebook=NOTEBOOK,
    text="""\
How much memory does a token take? Read it from the numbers that stand in a checkpoint's
`config.json`, for multi-head, grouped-query and latent attention.""",
    solution=bytes_per_token,
    trials=bytes_per_token_trials,
)


# 2. ---------------------------------------------------------------------------------------------


def attend_latent(
    q_nope: Tensor,
    q_rope: Tensor,
    cache: Tensor,
    block_tables: Tensor,
    seq_lens: Tensor,
    w_k: Tensor,
    w_v: Tensor,
    scale: float,
) -> Tensor:
    """One decode step over a latent cache in blocks, absorbed: K and V are never made.

    q_nope        [num_seqs, num_heads, nope_size]
    q_rope        [num_seqs, num_heads, rope_size]
    cache         [num_blocks, block_size, latent_size + rope_size], NaN where no token lives:
                  do not read beyond seq_len
    block_tables  [num_seqs, max_num_blocks_per_seq] int32, padded with 0
    seq_lens      [num_seqs] int32
    w_k           [num_heads, nope_size, latent_size]   the key of a head: w_k[h] @ latent, beside
                                                        the last rope_size numbers of the row
    w_v           [num_heads, value_size, latent_size]  its value: w_v[h] @ latent
    returns       [num_seqs, num_heads, value_size]
    """
    # 1. bring q_nope to the latents: the sum over nope_size is a sum with w_k
    # 2. for each sequence: its rows, from its blocks; no more than seq_len of them
    # 3. scores with both parts of a row, times scale; softmax over the tokens
    # 4. the weighted mean of the latents, for each head; then w_v
    ### BEGIN SOLUTION
    latent_size = w_k.shape[2]
    q_latent = torch.einsum("shn,hnc->shc", q_nope, w_k)
    outs = []
    for sequence, seq_len in enumerate(seq_lens.tolist()):
        rows = cache[block_tables[sequence].long()].flatten(0, 1)[:seq_len]
        latents, ropes = rows[:, :latent_size], rows[:, latent_size:]
        scores = q_latent[sequence] @ latents.T + q_rope[sequence] @ ropes.T
        outs.append((scale * scores).softmax(dim=-1) @ latents)
    return torch.einsum("shc,hvc->shv", torch.stack(outs), w_v)
    ### END SOLUTION


def attend_latent_trials(draw: int = 0) -> list[Trial]:
    def run(case: LatentCase, function: Callable | None) -> dict[str, Tensor]:
        answer = attend_latent if function is None else function
        inputs = latent_inputs(case, draw)
        with TensorsMade() as made:
            out = require_written(answer(*inputs.values()))
        require_shape(out, [len(case.seq_lens), case.num_heads, case.value_size])
        most = case.bytes_of_keys(max(case.seq_lens))
        largest = max(made.sizes, default=0)
        if case.watch_memory and largest >= most:
            raise AnswerError(
                f"it made a tensor of {largest:,} bytes; K of all heads has {most:,}, and "
                "nothing as large is needed"
            )
        return {"out": out}

    return [
        Trial(
            case.name,
            case.isolates,
            case.meaning,
            run=partial(run, case),
            references={"K and V of every head": partial(expanded_output, case, draw)},
            bounds={"out": CLOSE},
            axes=("sequence", "head", "dim"),
        )
        for case in LATENT_CASES
    ]


LATENT = Exercise(
    notebook=NOTEBOOK,
    text="""\
Decode over a latent cache. The rows lie in blocks, and a block table says where, as ever. K and V
of the heads must not be made: in one case, the grader looks at the largest tensor that you
make.""",
    solution=attend_latent,
    trials=attend_latent_trials,
)


# 3. ---------------------------------------------------------------------------------------------


def blocks_taken(requests: list[tuple[int, list[int], list[int]]], block_size: int) -> list[int]:
    """How many new blocks each request takes, if tables only grow.

    requests  (step, prompt, answer), in the order in which they arrived. In its step, a request
              gets blocks for its prompt, after all requests before it in the list have got
              theirs for this step; in each of the next steps, one token of the answer is
              appended. Nobody ends.
    returns   for each request, the blocks in its final table minus those found

    A full block can be found from the step on in which its last token is appended, by requests
    later in the list; the answer tokens of an earlier request count like those of its prompt. A
    new request looks up the blocks of its prompt, from the first one, up to the first that is not
    there; at least one token of the prompt must be left to compute, and a block is computed as a
    whole. Later it looks up nothing more.
    """
    # 1. when does a request's block that ends after `end` tokens become full?
    # 2. a block is found if someone before had all the tokens up to its end, early enough
    # 3. new blocks: all that the table has in the end, less those found
    ### BEGIN SOLUTION
    full: dict[tuple[int, ...], int] = {}  # tokens up to the end of a block -> first step
    taken = []
    for step, prompt, answer in requests:
        tokens = (*prompt, *answer)
        found = 0
        while (found + 1) * block_size < len(prompt):
            if full.get(tokens[: (found + 1) * block_size], step + 1) > step:
                break
            found += 1
        taken.append(-(-len(tokens) // block_size) - found)
        for end in range(block_size, len(tokens) + 1, block_size):
            when = step + max(0, end - len(prompt))
            full[tokens[:end]] = min(when, full.get(tokens[:end], when))
    return taken
    ### END SOLUTION


def blocks_taken_trials(draw: int = 0) -> list[Trial]:
    def run(case: tuple, function: Callable | None) -> dict[str, Tensor]:
        answer = blocks_taken if function is None else function
        requests, block_size = requests_of(case, draw)
        found = require_written(answer([(s, [*p], [*a]) for s, p, a in requests], block_size))
        if not isinstance(found, list) or not all(isinstance(number, int) for number in found):
            raise AnswerError(f"it returned {found!r:.60}; it must return a list of whole numbers")
        return {"out": require_shape(torch.tensor(found), [len(requests)]).double()}

    return [
        Trial(
            name,
            isolates,
            meaning,
            run=partial(run, case),
            references={"tables that only grow": partial(blocks_of_tables, case, draw)},
            bounds={"out": 0.0},
            axes=("request",),
        )
        for name, isolates, meaning, *case in TABLE_CASES
    ]


TABLES = Exercise(
    notebook=NOTEBOOK,
    text="""\
Requests with equal beginnings arrive, now and then at the same time. How many blocks does each of
them take, if a table may only grow? The grader asks `AppendOnlyTable`.

An example, in blocks of 2: `(0, [1, 2, 3], [4, 5])` and `(1, [1, 2, 3, 4, 6], [])`. Request 0 ends
with the blocks 1 2, 3 4 and 5, and has found none: 3. Its block 3 4 becomes full in step 1, by the
first token of its *answer*. Request 1 arrives in step 1, later in the list. It finds 1 2 and 3 4
and takes one block, for 6: 1. The answer is `[3, 1]`. Had it come in step 0, it would have found
1 2 alone: `[3, 2]`.""",
    solution=blocks_taken,
    trials=blocks_taken_trials,
)

EXERCISES = (SIZES, LATENT, TABLES)
