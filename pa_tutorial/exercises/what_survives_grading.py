"""How the exercises of notebook 18 are graded: their cases, and what must come out."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from pa_tutorial.paging.append_only import AppendOnlyTable
from pa_tutorial.paging.prefix_cache import PrefixCachingAllocator

Draws = np.random.Generator | None  # None: the cases of the notebook

# Bytes of a token --------------------------------------------------------------------------------

DTYPES = {1: torch.int8, 2: torch.float16, 4: torch.float32}


def _one_of(rng: Draws, usual: int, *choices: int) -> int:
    return usual if rng is None else int(rng.choice(choices))


def _heads(
    rng: Draws, kv: bool = True, one: bool = False, wide: bool = False, item: int = 2
) -> dict:
    """Sizes of a model with KV heads; kv, wide: whether these entries are there."""
    kv_heads = 1 if one else _one_of(rng, 8, 2, 4, 6)
    head_size = _one_of(rng, 128, 64, 80, 96)
    heads = kv_heads * _one_of(rng, 4, 2, 3, 5)
    if not kv:
        kv_heads = heads
    return {
        "layers": _one_of(rng, 32, *range(3, 31)),
        "heads": heads,
        "kv_heads": kv_heads,
        "head_size": head_size,
        "hidden": heads * head_size // (2 if wide else 1),
        "itemsize": item,
        "entries": ("kv",) * kv + ("head_dim",) * wide,
    }


def _latent(rng: Draws, kv: bool = False, item: int = 2) -> dict:
    """Sizes of a model with a latent cache."""
    return {
        "layers": _one_of(rng, 61, *range(3, 60)),
        "heads": _one_of(rng, 128, 16, 32, 64),
        "latent": _one_of(rng, 512, 256, 384, 640),
        "rope": _one_of(rng, 64, 32, 48, 96),
        "hidden": _one_of(rng, 7168, 2048, 4096),
        "itemsize": item,
        "entries": ("kv",) * kv,
    }


_BOTH = "K and V: two rows of head_dim numbers for each KV head."
_SHARED = "Query heads that share a KV head do not make it more."
_ROW = "One row for all heads; it is K and V at once."
_DTYPE = "bytes_per_number is given: 16 bits are not the only choice."
SIZE_CASES: tuple[tuple[str, str, str, Callable[[Draws], dict]], ...] = (
    # name, what it isolates, what its failure means, sizes
    ("mha", "without num_key_value_heads: as many as query heads", _BOTH,
     lambda rng: _heads(rng, kv=False)),
    ("gqa", "query heads share KV heads", _SHARED, _heads),
    ("mqa", "one KV head", _SHARED, lambda rng: _heads(rng, one=True)),
    ("head_dim", "the heads do not add up to hidden_size", "Read head_dim if it is there.",
     lambda rng: _heads(rng, wide=True)),
    ("float32", "four bytes a number", _DTYPE, lambda rng: _heads(rng, item=4)),
    ("mla", "a latent cache", _ROW, _latent),
    ("mla_with_heads", "a latent cache, whose config names KV heads too",
     "kv_lora_rank decides: then num_key_value_heads says nothing about the cache.",
     lambda rng: _latent(rng, kv=True)),
    ("mla_one_byte", "a latent cache, one byte a number", _DTYPE,
     lambda rng: _latent(rng, item=1)),
)  # fmt: skip


def config_of(sizes: dict) -> dict[str, int]:
    """The entries of config.json for these sizes."""
    config = {
        "num_hidden_layers": sizes["layers"],
        "num_attention_heads": sizes["heads"],
        "hidden_size": sizes["hidden"],
    }
    if "latent" in sizes:
        config |= {"kv_lora_rank": sizes["latent"], "qk_rope_head_dim": sizes["rope"]}
    if "kv" in sizes["entries"]:
        config["num_key_value_heads"] = sizes.get("kv_heads", sizes["heads"])
    if "head_dim" in sizes["entries"]:
        config["head_dim"] = sizes["head_size"]
    return config


def bytes_of_tensors(sizes: dict) -> dict[str, Tensor]:
    """The cache of one token as tensors without memory, and their bytes."""
    if "latent" in sizes:
        shapes = [(sizes["layers"], 1, sizes[name]) for name in ("latent", "rope")]
    else:
        shapes = [(sizes["layers"], sizes["kv_heads"], sizes["head_size"])] * 2
    dtype = DTYPES[sizes["itemsize"]]
    found = sum(torch.empty(shape, dtype=dtype, device="meta").nbytes for shape in shapes)
    return {"out": torch.tensor([float(found)], dtype=torch.float64)}


# Attention over latents --------------------------------------------------------------------------


@dataclass(frozen=True)
class LatentCase:
    """Sizes of a decode step over a latent cache.

    watch_memory  whether the grader looks at the largest tensor
    """

    name: str
    isolates: str
    meaning: str
    seq_lens: tuple[int, ...]
    num_heads: int = 4
    nope_size: int = 16
    rope_size: int = 8
    latent_size: int = 24
    value_size: int = 16
    block_size: int = 8
    q_factor: float = 1.0
    watch_memory: bool = False

    def bytes_of_keys(self, seq_len: int) -> int:
        """K of all heads of a sequence in float32, without its last rope_size numbers."""
        return 4 * seq_len * self.num_heads * self.nope_size


_TABLE = "Row block_tables[s] names the blocks of sequence s, in order."
_TAIL = "Only the first seq_len rows count; what lies behind is NaN."
_MOVE = "Move w_k to the query; w_v comes after the mean, head by head."
LATENT_CASES = (
    LatentCase("one_token", "a sequence of one token: its value", _MOVE, (1,)),
    LatentCase("full_block", "one full block", _MOVE, (8,)),
    LatentCase("tail", "the last block is not full", _TAIL, (13,)),
    LatentCase("shuffled", "four blocks, not in order", _TABLE, (32,)),
    LatentCase("many", "sequences of different length", _TABLE, (13, 1, 30, 8)),
    LatentCase("sharp", "one token has nearly all the weight", _MOVE, (13, 20), q_factor=20.0),
    LatentCase("other_sizes", "every size is different", _MOVE, (11, 6), num_heads=3,
               nope_size=12, rope_size=4, latent_size=20, value_size=10, block_size=4),
    LatentCase("never_expanded", "no tensor is as large as K of all heads",
               "Attend to the rows; do not make K or V of the heads.", (300, 17), num_heads=16,
               nope_size=32, watch_memory=True),
)  # fmt: skip


def latent_inputs(case: LatentCase, draw: int) -> dict[str, Tensor]:
    """The arguments of attend_latent, in their order, float32."""
    rng = np.random.default_rng((182, draw, *case.seq_lens))

    def numbers(*size: int) -> Tensor:
        return torch.from_numpy(rng.standard_normal(size)).float()

    counts = [-(-seq_len // case.block_size) for seq_len in case.seq_lens]
    num_blocks = sum(counts) + 3
    order = (rng.permutation(num_blocks - 1) + 1).tolist()  # block 0 pads
    cache = torch.full(
        (num_blocks, case.block_size, case.latent_size + case.rope_size), float("nan")
    )
    block_tables = torch.zeros(len(counts), max(counts) + 1, dtype=torch.int32)
    for sequence, (count, seq_len) in enumerate(zip(counts, case.seq_lens, strict=True)):
        table, order = order[:count], order[count:]
        block_tables[sequence, :count] = torch.tensor(table)
        for position in range(seq_len):
            block = table[position // case.block_size]
            cache[block, position % case.block_size] = numbers(cache.shape[2])
    heads = len(counts), case.num_heads
    w_k = numbers(case.num_heads, case.nope_size, case.latent_size) * case.latent_size**-0.5
    w_v = numbers(case.num_heads, case.value_size, case.latent_size) * case.latent_size**-0.5
    return {
        "q_nope": case.q_factor * numbers(*heads, case.nope_size),
        "q_rope": case.q_factor * numbers(*heads, case.rope_size),
        "cache": cache,
        "block_tables": block_tables,
        "seq_lens": torch.tensor(case.seq_lens, dtype=torch.int32),
        "w_k": w_k,
        "w_v": w_v,
        "scale": (case.nope_size + case.rope_size) ** -0.5,
    }


def expanded_output(case: LatentCase, draw: int) -> dict[str, Tensor]:
    """In float64, token by token and head by head, with K and V."""
    inputs = latent_inputs(case, draw)
    out = torch.zeros(len(case.seq_lens), case.num_heads, case.value_size, dtype=torch.float64)
    for sequence, seq_len in enumerate(case.seq_lens):
        table = inputs["block_tables"][sequence].tolist()
        size = case.block_size
        rows = torch.stack([inputs["cache"][table[i // size], i % size] for i in range(seq_len)])
        latents, ropes = rows.double().split([case.latent_size, case.rope_size], dim=1)
        for head in range(case.num_heads):
            k = latents @ inputs["w_k"][head].double().T
            v = latents @ inputs["w_v"][head].double().T
            scores = k @ inputs["q_nope"][sequence, head].double()
            scores += ropes @ inputs["q_rope"][sequence, head].double()
            out[sequence, head] = (inputs["scale"] * scores).softmax(dim=0) @ v
    return {"out": out}


# Tables that only grow ---------------------------------------------------------------------------

Requests = list[tuple[int, list[int], list[int]]]  # step, prompt, answer


class Words:
    """Tokens for a case: block_size, a beginning of several full blocks, and others at will."""

    def __init__(self, draw: int) -> None:
        rng = np.random.default_rng((183, draw)) if draw else None
        self.block_size = _one_of(rng, 4, 3, 5, 6)
        self.num_blocks = _one_of(rng, 2, 3, 4, 5)
        last = 64 if rng is None else 10_000
        order = range(last) if rng is None else rng.permutation(last)
        self._tokens = iter([int(token) for token in order])
        self.beginning = self.new(self.num_blocks * self.block_size)

    def new(self, count: int) -> list[int]:
        """Tokens that nobody had before."""
        return [next(self._tokens) for _ in range(count)]

    def blocks(self, count: int) -> list[int]:
        return self.new(count * self.block_size)


def nothing_shared(w: Words) -> Requests:
    return [(0, w.blocks(w.num_blocks) + w.new(1), []) for _ in range(2)]


def same_step(w: Words) -> Requests:
    return [(0, w.beginning + w.new(2), []) for _ in range(3)]


def whole_prompt_known(w: Words) -> Requests:
    return [(step, w.beginning, []) for step in (0, 1)]


def same_answers(w: Words) -> Requests:
    prompt, answer = w.beginning + w.new(1), w.blocks(1)
    return [(0, prompt, answer), (0, prompt, answer), (w.block_size, prompt, answer)]


def answer_in_prompt(w: Words, early: int = 0) -> Requests:
    answer = w.blocks(2)
    first = (0, w.beginning, answer)
    return [first, (len(answer) - early, w.beginning + answer + w.new(1), [])]


def answer_too_early(w: Words) -> Requests:
    return answer_in_prompt(w, early=1)


def a_gap(w: Words) -> Requests:
    end = w.blocks(1) + w.new(1)
    return [(0, w.beginning + w.blocks(1) + end, []), (0, w.beginning + w.blocks(1) + end, [])]


def longer_and_longer(w: Words) -> Requests:
    one, other = w.blocks(1), w.new(2)
    prompts = (w.beginning + other, w.beginning + one + other, w.beginning + one + one + other)
    return [(step, prompt, w.new(step + 2)) for step, prompt in enumerate(prompts)]


_WHOLE = "At least one token is computed, and so is the whole block that it is in."
_LATER = "What becomes full later is not looked up: the table has a block there already."
_WHEN = "A block can be found once its last token is appended."
TABLE_CASES = (
    ("nothing_shared", "different prompts", "Count the last block, though it is not full.",
     nothing_shared),
    ("same_step", "three prompts with the same beginning, in the same step", _WHEN, same_step),
    ("whole_prompt_known", "a prompt of full blocks, all of them there", _WHOLE,
     whole_prompt_known),
    ("same_answers", "the same prompts and the same answers", _LATER, same_answers),
    ("answer_in_prompt", "a prompt that holds an answer given before", _WHEN, answer_in_prompt),
    ("answer_too_early", "the same prompt, one step too early", _WHEN, answer_too_early),
    ("a_gap", "a block in the middle is different", "Stop at the first that is not there.",
     a_gap),
    ("longer_and_longer", "each prompt begins like the one before, and goes on", _LATER,
     longer_and_longer),
)  # fmt: skip


def requests_of(case: list, draw: int) -> tuple[Requests, int]:
    words = Words(draw)
    (make,) = case
    return make(words), words.block_size


def blocks_of_tables(case: list, draw: int) -> dict[str, Tensor]:
    """Append it all to tables, step by step, and watch the pool."""
    requests, block_size = requests_of(case, draw)
    pool = PrefixCachingAllocator(num_blocks=500)
    tables = [AppendOnlyTable(pool, block_size) for _ in requests]
    taken = [0] * len(requests)
    for now in range(1 + max(step + len(answer) for step, _, answer in requests)):
        for number, (step, prompt, answer) in enumerate(requests):
            new = prompt if now == step else answer[now - step - 1 : now - step]
            if now >= step and new:
                free = pool.num_free
                tables[number].append(new)
                taken[number] += free - pool.num_free
    return {"out": torch.tensor(taken).double()}
