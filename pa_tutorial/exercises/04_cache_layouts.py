"""Blanks of notebook 04: the address of an element, writing to slots, copying sequences out."""

import math
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pa_tutorial.attention.step import DecodeStep
from pa_tutorial.attention.work import TensorsMade
from pa_tutorial.checks.calls import AnswerError, require_written
from pa_tutorial.checks.cases import CASES as PROBLEMS
from pa_tutorial.checks.problem import DecodeProblem
from pa_tutorial.checks.running import Trial
from pa_tutorial.exercises.grading import (
    bounds_for,
    graded,
    require_tensor,
    require_tensors,
    whole_numbers,
)
from pa_tutorial.exercises.random_inputs import reseeded, seeded_torch
from pa_tutorial.paging.layouts import VllmLayout

Place = tuple[int, int, int, int]  # block, head, offset, dim
Slots = tuple[int, ...]

# The worked example's sizes; in float32 where elements are numbered, because it has more numbers.
EXAMPLE = VllmLayout(7, 2, 32, 8, torch.float16)
NUMBERED = VllmLayout(7, 2, 32, 8)
SMALL = VllmLayout(5, 1, 8, 4)
WIDE = VllmLayout(4, 3, 80, 16)


def in_block(slot: int, size: int) -> str:
    return f"slot {slot} (block {slot // size}, offset {slot % size})"


def numbers(num_tokens: int, layout: VllmLayout) -> Tensor:
    """[num_tokens, num_kv_heads, head_size]: each element has its own number, from 1."""
    shape = num_tokens, layout.num_kv_heads, layout.head_size
    return torch.arange(1.0, 1 + math.prod(shape)).view(shape)


def named(number: float, layout: VllmLayout) -> tuple[str, int, int, int]:
    """K or V, token, head and dim of a number; V has those of K, below 0."""
    rest, dim = divmod(int(abs(number)) - 1, layout.head_size)
    return "KV"[number < 0], *divmod(rest, layout.num_kv_heads), dim


# k_address ----------------------------------------------------------------------------------------

ADDRESSES = (
    # name, what it isolates, what its failure means, layout, place
    ("block 5, head 1, offset 3, element 20", "float16", "", EXAMPLE, (5, 1, 3, 20)),
    ("float32", "x is 4", "", VllmLayout(5, 3, 64, 16), (4, 2, 15, 63)),
    ("one KV head", "blocks of 32", "", VllmLayout(4, 1, 64, 32, torch.float16), (3, 0, 9, 17)),
    ("many blocks", "addresses of more than 32 bits", "",
     VllmLayout(80_000, 32, 128, 16, torch.float16), (79_999, 31, 3, 100)),
)  # fmt: skip


def another_place(
    rng: np.random.Generator, _: str, layout: VllmLayout, __: Place
) -> tuple[None, VllmLayout, Place]:
    ends = layout.num_blocks, layout.num_kv_heads, layout.block_size, layout.head_size
    return None, layout, tuple(rng.integers(ends).tolist())


def run_address(pages: Any, layout: VllmLayout, place: Place) -> Tensor:
    places = *one_step_along_each(layout), place
    return torch.tensor([require_address(pages.k_address, layout, one) for one in places])


def one_step_along_each(layout: VllmLayout) -> list[Place]:
    """From the fastest index to the slowest."""
    steps = [(0, 0, 0, 1), (0, 0, 0, layout.x), (0, 0, 1, 0), (0, 1, 0, 0), (1, 0, 0, 0)]
    return [place for place in steps if place[1] < layout.num_kv_heads]


def require_address(k_address: Callable[..., int], layout: VllmLayout, place: Place) -> int:
    result = k_address(*place, layout.k_shape, layout.dtype.itemsize)
    (found,), wanted = whole_numbers([require_written(result)], 1), byte_of(layout, place)
    if found == wanted:
        return found
    names = zip(("block", "head", "offset", "dim"), place, strict=True)
    call = ", ".join(f"{name}={index}" for name, index in names)
    shape = f"k_shape {list(layout.k_shape)}, itemsize {layout.dtype.itemsize}"
    words = f"for {call} ({shape}) the byte should be {wanted:,}, is {found:,}"
    raise AnswerError(f"{words}{who_is_at(layout, found, wanted)}")


def byte_of(layout: VllmLayout, place: Place) -> int:
    return layout.k_element(*place) * layout.dtype.itemsize


def byte_of_place(layout: VllmLayout, place: Place) -> Tensor:
    return torch.tensor([byte_of(layout, place)])


def who_is_at(layout: VllmLayout, byte: int, wanted: int) -> str:
    """Which element begins at a byte, in words; "" if none does."""
    if byte * layout.dtype.itemsize == wanted:
        return f": that is the element's number, and each has {layout.dtype.itemsize} bytes"
    element, rest = divmod(byte, layout.dtype.itemsize)
    if rest or not 0 <= element < math.prod(layout.k_shape):
        return ""
    block, head, piece, offset, place = map(int, np.unravel_index(element, layout.k_shape))
    dim = piece * layout.x + place
    return f": that is where block={block}, head={head}, offset={offset}, dim={dim} begins"


def the_definition(layout: VllmLayout, place: Place) -> Tensor:
    places = *one_step_along_each(layout), place
    return torch.tensor([byte_of(layout, one) for one in places])


# reshape_and_cache --------------------------------------------------------------------------------

WRITES = (
    # name, what it isolates, what its failure means, layout, slot_mapping
    ("the worked example in float32", "two blocks", "", NUMBERED, (*range(40, 48), *range(16, 19))),
    ("padding", "-1 between tokens and behind them", "", SMALL, (9, 10, -1, 11, 4, -1)),
    ("slot 0", "block 0 is in use", "", SMALL, (3, 2, 1, 0)),
    ("another size", "ten pieces and more", "", WIDE, (33, 7, -1, 63)),
)


def other_slots(
    rng: np.random.Generator, _: str, layout: VllmLayout, slots: Slots
) -> tuple[None, VllmLayout, Slots]:
    """The same offsets, in other blocks, and -1 where it was."""
    blocks, size = rng.permutation(layout.num_blocks).tolist(), layout.block_size
    return None, layout, tuple(s if s < 0 else blocks[s // size] * size + s % size for s in slots)


def run_write(pages: Any, layout: VllmLayout, slots: Slots) -> Tensor:
    key = numbers(len(slots), layout)
    k_cache, v_cache = layout.empty()
    pages.reshape_and_cache(key.clone(), -key, k_cache, v_cache, torch.tensor(slots))
    for name, cache in (("k_cache", k_cache), ("v_cache", v_cache)):
        if cache.isnan().all():
            raise AnswerError(f"{name} was not changed: store into it, in place, not into a copy")
    for token, slot in enumerate(slots):
        if slot >= 0:
            require_token(layout, (k_cache, v_cache), key, token, slot)
    for cache in (k_cache, v_cache):
        require_nothing_else(layout, cache, slots)
    return all_of(k_cache, v_cache)


def require_token(
    layout: VllmLayout, caches: tuple[Tensor, Tensor], key: Tensor, token: int, slot: int
) -> None:
    """Raises AnswerError for the first element of a token that isn't where it should be."""
    block, offset = divmod(slot, layout.block_size)
    elements = [*product(range(layout.num_kv_heads), range(layout.head_size))]
    for name, cache, place, sign in zip("KV", caches, places_of(layout), (1, -1), strict=True):
        for head, dim in elements:
            index, wanted = place(block, head, offset, dim), sign * key[token, head, dim].item()
            if cache[index] != wanted:
                what = f"token {token}'s {name}, head {head}, element {dim}"
                where = f"{in_block(slot, layout.block_size)}: {name.lower()}_cache{[*index]}"
                there = what_is(cache[index].item(), layout)
                raise AnswerError(f"{what} belongs into {where}. There is {there}")


def places_of(layout: VllmLayout) -> tuple[Callable[..., tuple[int, ...]], ...]:
    return layout.k_place, layout.v_place


def what_is(number: float, layout: VllmLayout) -> str:
    if math.isnan(number):
        return "nothing yet"
    name, token, head, dim = named(number, layout)
    return f"token {token}'s {name}, head {head}, element {dim}"


def require_nothing_else(layout: VllmLayout, cache: Tensor, slots: Slots) -> None:
    """Raises AnswerError for a slot of no new token that was written."""
    free = set(range(layout.num_blocks * layout.block_size)) - {*slots}
    tokens = cache.movedim(3, 1).flatten(2)  # [num_blocks, block_size, …]
    for slot in sorted(free):
        written = tokens[divmod(slot, layout.block_size)]
        if (there := written[~written.isnan()]).numel():
            _, token, _, _ = named(there[0].item(), layout)
            where = in_block(slot, layout.block_size)
            if slots[token] < 0:
                whose = f"row {token} of key and value has the slot -1, so it is padding"
                raise AnswerError(f"{whose}, but it was written into {where}")
            raise AnswerError(f"{where} is no slot of these tokens, but token {token} is there")


def blocks_and_offsets(layout: VllmLayout, slots: Slots) -> Tensor:
    return torch.tensor([divmod(slot, layout.block_size) for slot in slots if slot >= 0])


def all_of(k_cache: Tensor, v_cache: Tensor) -> Tensor:
    """The elements of both caches; 0 where nothing was written."""
    return torch.cat([k_cache.flatten(), v_cache.flatten()]).nan_to_num(nan=0)


def one_by_one(layout: VllmLayout, slots: Slots) -> Tensor:
    key, caches = numbers(len(slots), layout), layout.empty()
    for token, slot in enumerate(slots):
        block, offset = divmod(slot, layout.block_size)
        for head, dim in np.ndindex(*key.shape[1:]) if slot >= 0 else ():
            for cache, place, sign in zip(caches, places_of(layout), (1, -1), strict=True):
                cache[place(block, head, offset, dim)] = sign * key[token, head, dim]
    return all_of(*caches)


# gather -------------------------------------------------------------------------------------------

COPIES = (
    # name, what it isolates, what its failure means, layout, block table, seq_len
    ("the worked example in float32", "a tail", "", NUMBERED, (5, 2, 0), 11),
    ("one full block", "no tail", "", NUMBERED, (3,), 8),
    ("block 0", "block 0 is in use", "", SMALL, (0, 4, 1), 12),
    ("a wide table", "the table is much longer than the sequence", "", SMALL, (3, 0, 0, 0), 3),
    ("another size", "ten pieces and more", "", WIDE, (2, 1, 3), 33),
)


def other_blocks(
    rng: np.random.Generator, _: str, layout: VllmLayout, table: Slots, seq_len: int
) -> tuple[None, VllmLayout, Slots, int]:
    used = -(-seq_len // layout.block_size)
    blocks = rng.permutation(layout.num_blocks)[:used].tolist()
    return None, layout, (*blocks, *table[used:]), seq_len


def numbered_caches(layout: VllmLayout) -> tuple[Tensor, Tensor]:
    """A cache that is full; the number of an element says which it is, its slot as its token."""
    num_slots = layout.num_blocks * layout.block_size
    # [num_blocks, block_size, num_kv_heads, head_size]
    key = numbers(num_slots, layout).unflatten(0, (layout.num_blocks, layout.block_size))
    k_cache = key.unflatten(3, (-1, layout.x)).permute(0, 2, 3, 1, 4).contiguous()
    return k_cache, -key.permute(0, 2, 3, 1).contiguous()


def run_gather(pages: Any, layout: VllmLayout, table: Slots, seq_len: int) -> Tensor:
    caches, right = numbered_caches(layout), slots_of(layout, table, seq_len)
    result = pages.gather(*caches, torch.tensor(table, dtype=torch.int32), seq_len)
    like = torch.empty(seq_len, layout.num_kv_heads, layout.head_size)
    require_shapes(result, list(like.shape))
    both = require_tensors(result, "K and V", (like, like))
    for name, found in zip("KV", both, strict=True):
        for place in np.ndindex(found.shape):
            require_copied(layout, name, found[place].item(), place, right.tolist())
    require_few_moved(elements_moved(pages, layout, table, seq_len), layout, seq_len)
    return torch.stack(both)


def require_shapes(result: object, shape: list[int]) -> None:
    """Raises AnswerError if K or V has more tokens than the sequence, or another shape."""
    for name, tensor in zip("KV", result if isinstance(result, tuple) else (), strict=False):
        if not torch.is_tensor(tensor) or (found := list(tensor.shape)) == shape:
            continue
        if found[1:] == shape[1:] and found[0] > shape[0]:
            raise AnswerError(
                f"it returned {found[0]} tokens, and the sequence has {shape[0]}. What the block "
                "table has behind them is padding, and the rest of a block is empty"
            )
        pieces = ": join the pieces" if len(found) == 4 and name == "K" else ""
        raise AnswerError(f"{name} must have the shape {shape}; yours is {found}{pieces}")


def require_copied(
    layout: VllmLayout, name: str, number: float, place: tuple[int, ...], slots: list[int]
) -> None:
    """Raises AnswerError for an element that is another one's."""
    token, head, dim = place
    found = named(number, layout)
    if found == (name, slots[token], head, dim):
        return
    mine, slot, found_head, found_dim = found
    what = f"{name} of token {token}"
    if mine == name and slot != slots[token]:
        own, theirs = (in_block(one, layout.block_size) for one in (slots[token], slot))
        raise AnswerError(f"{what} should come from {own}; yours comes from {theirs}")
    theirs = f"element {found_dim} of head {found_head}{'' if mine == name else f', of {mine}'}"
    raise AnswerError(f"{what}: where element {dim} of head {head} should be, there is {theirs}")


def require_few_moved(costs: dict[str, int], layout: VllmLayout, seq_len: int) -> None:
    """Raises AnswerError if more than the sequence's blocks was copied."""
    of_block = 2 * layout.block_size * layout.num_kv_heads * layout.head_size
    blocks, moved = -(-seq_len // layout.block_size), costs["elements moved"]
    if moved > blocks * of_block:
        raise AnswerError(
            f"it is right, but it moved {moved:,} elements; the sequence has {blocks * of_block:,} "
            f"in its {blocks} blocks. Was the table's padding copied too, or all of the pool?"
        )


def elements_moved(pages: Any, layout: VllmLayout, table: Slots, seq_len: int) -> dict[str, int]:
    """Elements of K and V that are copied out of the pool."""
    k_cache, v_cache = numbered_caches(layout)
    with TensorsMade(k_cache, v_cache) as made:
        pages.gather(k_cache, v_cache, torch.tensor(table, dtype=torch.int32), seq_len)
    return {"elements moved": made.bytes_read // layout.dtype.itemsize}


def numbers_of_slots(layout: VllmLayout, table: Slots, seq_len: int) -> Tensor:
    """[2, seq_len, num_kv_heads, head_size]"""
    key = numbers(layout.num_blocks * layout.block_size, layout)
    key = key[slots_of(layout, table, seq_len)]
    return torch.stack([key, -key])


def slots_of(layout: VllmLayout, table: Slots, seq_len: int) -> Tensor:
    size = layout.block_size
    return torch.tensor([table[token // size] * size + token % size for token in range(seq_len)])


# paged_gather -------------------------------------------------------------------------------------

# Three sequences, of which two share block 3, in as many slots as the picture has room for. V has
# an element for each slot of the pool: 1 in that of its own slot, else 0. So the output is the
# weight of each slot.
POOL = VllmLayout(4, 1, 16, 4)
LENS, TABLES = (7, 4, 2), ((3, 1, 0), (3, 0, 0), (2, 0, 0))
SEEN = (("one step of three sequences", "two of them share a block", ""),)
STEPS = "one_token", "gqa", "alibi", "block_zero_in_use", "float16"


def shown_step(draw: int) -> DecodeStep:
    """Slots without a token hold old numbers."""
    num_slots, drawn = POOL.num_blocks * POOL.block_size, seeded_torch(4, draw)
    q = torch.randn(len(LENS), 1, POOL.head_size, generator=drawn)
    return DecodeStep(
        q,
        torch.randn(POOL.k_shape, generator=drawn),
        torch.eye(num_slots).view(POOL.num_blocks, POOL.block_size, 1, -1).permute(0, 2, 3, 1),
        torch.tensor(TABLES, dtype=torch.int32),
        torch.tensor(LENS, dtype=torch.int32),
        scale=POOL.head_size**-0.5,
    )


def weights_of_slots(pages: Any, draw: int) -> Tensor:
    """[num_seqs, num_slots]"""
    step = shown_step(draw)
    return require_tensor(pages.paged_gather(**vars(step)), step.q)[:, 0]


def run_shown(pages: Any, draw: int) -> Tensor:
    found = weights_of_slots(pages, draw)
    for sequence, (table, seq_len) in enumerate(zip(TABLES, LENS, strict=True)):
        own = slots_of(POOL, table, seq_len).tolist()
        for slot, weight in enumerate(found[sequence].tolist()):
            where = in_block(slot, POOL.block_size)
            if weight and slot not in own:
                query = f"the query of sequence {sequence}"
                raise AnswerError(f"{query} sees {where}, which holds no token of its own")
            if not weight and slot in own:
                token = f"token {own.index(slot)} of sequence {sequence}, in {where}"
                raise AnswerError(f"{token}, gets no weight")
    return found


def softmax_over_own_tokens(draw: int) -> Tensor:
    step = shown_step(draw)
    k = step.k_cache.permute(0, 3, 1, 2, 4).reshape(-1, POOL.head_size).double()
    weights = torch.zeros(len(LENS), len(k), dtype=torch.float64)
    for row, q, table, seq_len in zip(weights, step.q.double(), TABLES, LENS, strict=True):
        own = slots_of(POOL, table, seq_len)
        row[own] = torch.softmax(step.scale * (k[own] @ q[0]), dim=0)
    return weights


def run_step(pages: Any, problem: DecodeProblem, draw: int) -> Tensor:
    step = reseeded(problem, draw).paged("vllm")
    out = require_tensor(pages.paged_gather(**vars(step)), step.q)
    if step.alibi_slopes is not None:
        without = replace(step, alibi_slopes=None)
        if torch.equal(out, pages.paged_gather(**vars(without))):
            raise AnswerError("alibi_slopes had no effect")
    return out


def the_oracle(problem: DecodeProblem, draw: int) -> np.ndarray:
    return reseeded(problem, draw).expected()["out"]


def bound_of(problem: DecodeProblem, draw: int) -> float:
    return bounds_for(problem.id, draw)["out"]


PROBLEMS_TRIED = [PROBLEMS[f"decode/{name}"] for name in STEPS]
SEEN_TRIALS = graded(
    SEEN,
    run_shown,
    softmax_over_own_tokens,
    ("sequence", "slot"),
    bound=1e-5,
    drawn=weights_of_slots,
)
STEP_TRIALS = graded(
    [(one.name, one.isolates, one.meaning, one) for one in PROBLEMS_TRIED],
    run_step,
    the_oracle,
    DecodeProblem.axes,
    bound=bound_of,
)


def trials_of_paged_gather(draw: int) -> list[Trial]:
    return [*SEEN_TRIALS(draw), *STEP_TRIALS(draw)]


CASES: dict[str, Callable[[int], list[Trial]]] = {
    "k_address": graded(
        ADDRESSES,
        run_address,
        the_definition,
        ("place",),
        another_place,
        goal=(byte_of_place, ("byte",)),
    ),
    "reshape_and_cache": graded(
        WRITES,
        run_write,
        one_by_one,
        ("element of both caches",),
        other_slots,
        goal=(blocks_and_offsets, ("token", "block|offset")),
    ),
    "gather": graded(
        COPIES,
        run_gather,
        numbers_of_slots,
        ("K|V", "token", "head", "element"),
        other_blocks,
        costs=elements_moved,
        goal=(slots_of, ("token",)),
    ),
    "paged_gather": trials_of_paged_gather,
}
EXERCISES = ()
