"""Attention over pages, as you write it in notebooks 01 to 06 and 20: the cache, the pool of
blocks, the block tables, and attention that reads them.

Each function is the answer to a blank, or is given in the notebook. `Pages`, at the end of part 03,
is what an engine asks of them.
"""

import math
from collections import deque
from collections.abc import Callable, Hashable
from collections.abc import Sequence as Several
from dataclasses import dataclass, field
from hashlib import sha256
from typing import NamedTuple

import torch
from torch import Tensor

from pa_tutorial.attention.cached import cached_attention
from pa_tutorial.paging.allocator import Admission
from pa_tutorial.paging.errors import OutOfBlocks
from pa_tutorial.paging.pages import Appended
from pa_tutorial.paging.pages import Pages as AnyPages

# 01 · The KV cache --------------------------------------------------------------------------------


def attention(
    q: Tensor,  # [num_queries, num_heads, head_size]: the last tokens'
    k: Tensor,  # [seq_len, num_heads, head_size]: all tokens'
    v: Tensor,  # like k
    scale: float,
    bias: Tensor | float = 0.0,  # added to the scores, [num_heads, num_queries, seq_len]
) -> Tensor:  # like q
    qk = scale * torch.einsum("ihd,jhd->hij", q, k) + bias
    # The causal mask. The queries belong to the last tokens.
    i = torch.arange(len(k) - len(q), len(k))[:, None]
    j = torch.arange(len(k))
    weights = torch.softmax(qk.masked_fill(j > i, -math.inf), dim=-1)
    return torch.einsum("hij,jhd->ihd", weights, v)


class Cache:
    """K and V of one layer: room for max_len tokens, NaN where there is none yet."""

    def __init__(self, max_len: int, num_kv_heads: int, head_size: int) -> None:
        self.memory = torch.full((2, max_len, num_kv_heads, head_size), math.nan)
        self.seq_len = 0

    def tokens(self) -> Tensor:
        """K and V, each [seq_len, num_kv_heads, head_size]."""
        return self.memory[:, : self.seq_len]


def append_kv(
    cache: Cache,
    k: Tensor,  # [num_new_tokens, num_kv_heads, head_size]
    v: Tensor,  # like k
) -> None:
    end = cache.seq_len + len(k)
    cache.memory[0, cache.seq_len : end] = k
    cache.memory[1, cache.seq_len : end] = v
    cache.seq_len = end


def generate(
    step: Callable[[Tensor], Tensor],  # new tokens -> their scores, [num_new_tokens, vocab_size]
    prompt: Tensor,  # [prompt_len]
    num_tokens: int,
) -> Tensor:  # [prompt_len + num_tokens]
    text, new = prompt, prompt
    for _ in range(num_tokens):
        scores = step(new)
        new = scores[-1].argmax(keepdim=True)
        text = torch.cat([text, new])
    return text


# 02 · Memory waste --------------------------------------------------------------------------------


def find_gap(
    reservations: list[range],  # slots that are taken, in no special order
    size: int,
    num_slots: int,
) -> int | None:  # the first slot of the gap
    start = 0
    for taken in sorted(reservations, key=lambda taken: taken.start):
        if start + size <= taken.start:
            break
        start = taken.stop
    return start if start + size <= num_slots else None


def waste_of(num_slots: int, num_tokens: int, final_len: int) -> tuple[int, int, int]:
    used = min(num_slots, final_len)
    return num_tokens, used - num_tokens, num_slots - used


def num_blocks(num_tokens: int, block_size: int) -> int:
    return (num_tokens + block_size - 1) // block_size  # rounded up


class Blocks:
    """A pool of blocks, numbered from 1."""

    def __init__(self, num_slots: int, block_size: int) -> None:
        self.num_slots, self.block_size = num_slots, block_size
        self.free_blocks = list(range(num_slots // block_size, 0, -1))  # the last is taken next
        self.tables: dict[int, list[int]] = {}  # number of a request -> its blocks

    def store(self, number: int, num_tokens: int) -> bool:
        """False if there is no room."""
        return store(self, number, num_tokens)

    def release(self, number: int) -> None:
        self.free_blocks += self.tables.pop(number)

    def needs(self, number: int, num_tokens: int) -> int:
        """Slots, the last block's included."""
        return num_blocks(num_tokens, self.block_size) * self.block_size

    def places(self, number: int) -> list[int]:
        """Of its slots in a drawing of the pool; block 1 comes first."""
        size, blocks = self.block_size, self.tables[number]
        return [place for b in blocks for place in range(b * size - size, b * size)]


def store(memory: Blocks, number: int, num_tokens: int) -> bool:
    blocks = memory.tables.get(number, [])
    missing = num_blocks(num_tokens, memory.block_size) - len(blocks)
    if missing > len(memory.free_blocks):
        return False
    taken = [memory.free_blocks.pop() for _ in range(missing)]
    memory.tables[number] = blocks + taken
    return True


def preempt(running: list[int], waiting: deque[int], memory: Blocks) -> int:
    youngest = running.pop()
    memory.release(youngest)
    waiting.appendleft(youngest)
    return youngest


# 03 · Blocks and block tables ---------------------------------------------------------------------


class Pool:
    """Blocks 1 to num_blocks - 1: which are free, and how many sequences have each."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.block_size = block_size
        self.free_blocks = list(range(num_blocks - 1, 0, -1))  # the last one is allocated next
        self.ref_counts = [0] * num_blocks


@dataclass
class Sequence:
    tokens: list[int] = field(default_factory=list)
    blocks: list[int] = field(default_factory=list)  # its block table


def allocate(pool: Pool) -> int:
    if not pool.free_blocks:
        raise OutOfBlocks("no block is free")
    block = pool.free_blocks.pop()
    pool.ref_counts[block] = 1
    return block


def release(pool: Pool, block: int) -> None:
    pool.ref_counts[block] -= 1
    if pool.ref_counts[block] == 0:
        pool.free_blocks.append(block)


def slot_mapping(block_table: Tensor, positions: Tensor, block_size: int) -> Tensor:
    block = block_table[positions // block_size]
    offset = positions % block_size
    return block * block_size + offset


def append_token(pool: Pool, sequence: Sequence, token: int) -> list[tuple[int, int]]:
    copies = []
    if len(sequence.tokens) % pool.block_size == 0:  # the last block is full, or there is none
        sequence.blocks.append(allocate(pool))
    else:
        copies = copy_on_write(pool, sequence)
    sequence.tokens.append(token)
    return copies


def fork(pool: Pool, sequence: Sequence) -> Sequence:
    for block in sequence.blocks:
        pool.ref_counts[block] += 1
    return Sequence(sequence.tokens.copy(), sequence.blocks.copy())


def copy_on_write(pool: Pool, sequence: Sequence) -> list[tuple[int, int]]:
    old = sequence.blocks[-1]
    if pool.ref_counts[old] == 1:
        return []
    new = allocate(pool)  # first: if no block is free, nothing has changed
    sequence.blocks[-1] = new
    release(pool, old)
    return [(old, new)]


def free(pool: Pool, sequence: Sequence) -> None:
    for block in reversed(sequence.blocks):
        release(pool, block)
    sequence.tokens, sequence.blocks = [], []


class Pages(AnyPages):
    """What an engine asks of them."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks, self.block_size = num_blocks, block_size
        self.pool = Pool(num_blocks, block_size)
        self.sequences: dict[Hashable, Sequence] = {}

    @property
    def num_free(self) -> int:
        return len(self.pool.free_blocks)

    def admit(self, token_ids: Several[int]) -> Admission:
        needed = num_blocks(len(token_ids), self.block_size)
        if needed > self.num_usable:
            return Admission.NEVER
        return Admission.NOW if needed <= self.num_free else Admission.LATER

    def append(self, name: Hashable, token_ids: Several[int]) -> Appended:
        sequence = self.sequences.get(name, Sequence())
        first = len(sequence.tokens)
        needed = self.blocks_needed(sequence, len(token_ids))
        if needed > self.num_free:  # before anything changes
            raise OutOfBlocks(f"blocks needed: {needed}; free: {self.num_free}")
        copies = []
        for token in token_ids:
            copies += append_token(self.pool, sequence, token)
        self.sequences[name] = sequence
        positions = torch.arange(first, len(sequence.tokens))
        slots = slot_mapping(torch.tensor(sequence.blocks), positions, self.block_size)
        return Appended(copies, slots.tolist())

    def blocks_needed(self, sequence: Sequence, num_tokens: int) -> int:
        """What appending that many tokens takes."""
        has_room = len(sequence.tokens) % self.block_size > 0
        must_copy = has_room and self.pool.ref_counts[sequence.blocks[-1]] > 1
        total = num_blocks(len(sequence.tokens) + num_tokens, self.block_size)
        return total - len(sequence.blocks) + (must_copy and num_tokens > 0)

    def fork(self, name: Hashable, new: Hashable) -> None:
        if new in self.sequences:
            raise ValueError(f"new is {new!r}; it must be a name that no sequence has")
        self.sequences[new] = fork(self.pool, self.sequences[name])

    def free(self, name: Hashable) -> None:
        free(self.pool, self.sequences.pop(name))

    def table(self, name: Hashable) -> list[int]:
        return self.sequences[name].blocks.copy()


# 04 · Cache layouts -------------------------------------------------------------------------------


def k_address(
    block: int, head: int, offset: int, dim: int, k_shape: tuple[int, ...], itemsize: int
) -> int:
    _, num_kv_heads, num_pieces, block_size, x = k_shape
    piece, place = dim // x, dim % x
    pieces_before = (block * num_kv_heads + head) * num_pieces + piece
    element = (pieces_before * block_size + offset) * x + place
    return element * itemsize


def reshape_and_cache(
    key: Tensor,  # [num_tokens, num_kv_heads, head_size], as is value
    value: Tensor,
    k_cache: Tensor,  # [num_blocks, num_kv_heads, head_size / x, block_size, x]
    v_cache: Tensor,  # [num_blocks, num_kv_heads, head_size, block_size]
    slot_mapping: Tensor,  # [num_tokens] int64
) -> None:
    _, num_kv_heads, num_pieces, block_size, x = k_cache.shape
    for token, slot in enumerate(slot_mapping.tolist()):
        if slot >= 0:
            block, offset = slot // block_size, slot % block_size
            k_cache[block, :, :, offset] = key[token].view(num_kv_heads, num_pieces, x)
            v_cache[block, :, :, offset] = value[token]


def gather(
    k_cache: Tensor,
    v_cache: Tensor,
    block_table: Tensor,  # [max_num_blocks_per_seq] int32, padded with 0
    seq_len: int,
) -> tuple[Tensor, Tensor]:  # K and V, each [seq_len, num_kv_heads, head_size]
    block_size = v_cache.shape[-1]
    slots = slot_mapping(block_table, torch.arange(seq_len), block_size)
    block, offset = slots // block_size, slots % block_size
    k = k_cache[block, :, :, offset].flatten(2)  # its pieces joined
    v = v_cache[block, :, :, offset]
    return k, v


def paged_gather(
    q: Tensor,  # [num_seqs, num_heads, head_size], as is the output
    k_cache: Tensor,
    v_cache: Tensor,
    block_tables: Tensor,  # [num_seqs, max_num_blocks_per_seq] int32, padded with 0
    seq_lens: Tensor,  # [num_seqs] int32
    scale: float,
    alibi_slopes: Tensor | None = None,
) -> Tensor:
    outs = []
    for sequence, seq_len in enumerate(seq_lens.tolist()):
        k, v = gather(k_cache, v_cache, block_tables[sequence], seq_len)
        query = q[sequence : sequence + 1]
        outs.append(cached_attention(query, k, v, scale, alibi_slopes))
    return torch.cat(outs)


# 05 · Online softmax ------------------------------------------------------------------------------


class Part(NamedTuple):
    """Attention over some tokens: all that one must know of them."""

    m: float | Tensor  # the largest score
    l: float | Tensor  # the sum of exp(score - m)
    acc: list[float] | Tensor  # the sum of exp(score - m) * v


def add_token(part: Part, score: float, v: list[float]) -> Part:
    m = max(part.m, score)
    rescale, weight = exp_from(part.m, m), exp_from(score, m)
    l = part.l * rescale + weight
    acc = [a * rescale + weight * x for a, x in zip(part.acc, v, strict=True)]
    return Part(m, l, acc)


def exp_from(score: float, m: float) -> float:
    if score == -math.inf:  # its weight is 0, whatever m is
        return 0.0
    return math.exp(score - m)


def exps_from(scores: Tensor, m: Tensor) -> Tensor:
    return torch.exp(scores - m).masked_fill(scores == -math.inf, 0.0)


def part_of(
    qk: Tensor,  # [..., num_queries, num_tokens], -inf where a token is masked
    v: Tensor,  # [..., num_tokens, head_size]
) -> Part:  # m and l [..., num_queries], acc [..., num_queries, head_size]
    m = qk.amax(dim=-1)
    weights = exps_from(qk, m[..., None])
    l, acc = weights.sum(dim=-1), weights @ v
    return Part(m, l, acc)


def merge(one: Part, other: Part) -> Part:
    m = torch.maximum(one.m, other.m)
    a, b = exps_from(one.m, m), exps_from(other.m, m)
    l = one.l * a + other.l * b
    acc = one.acc * a[..., None] + other.acc * b[..., None]
    return Part(m, l, acc)


# 06 · PagedAttention in torch ---------------------------------------------------------------------


def tokens_of_block(block_idx: int, seq_lens: Tensor, block_size: int) -> tuple[Tensor, Tensor]:
    token = block_idx * block_size + torch.arange(block_size)
    is_token = token < seq_lens[:, None]
    return token, is_token


def empty_part(shape: tuple[int, ...], head_size: int) -> Part:
    """Parts without a token, one for each query."""
    return Part(torch.full(shape, -torch.inf), torch.zeros(shape), torch.zeros(*shape, head_size))


def scores_of_block(
    q: Tensor, k: Tensor, token: Tensor, seq_lens: Tensor, scale: float, slopes: Tensor | None
) -> Tensor:
    """[num_seqs, num_kv_heads, group, block_size], with ALiBi if there are slopes."""
    qk = scale * (q @ k.mT)
    if slopes is None:
        return qk
    slope = slopes.float().view(q.shape[1], -1, 1)
    return qk + slope * (token - seq_lens[:, None] + 1)[:, None, None]


def paged_attention(
    q: Tensor,  # [num_seqs, num_heads, head_size], like the output
    k_cache: Tensor,  # [num_blocks, num_kv_heads, block_size, head_size]
    v_cache: Tensor,
    block_tables: Tensor,
    seq_lens: Tensor,
    scale: float,
    alibi_slopes: Tensor | None = None,
) -> Tensor:
    _, num_kv_heads, block_size, head_size = k_cache.shape
    grouped = q.float().unflatten(1, (num_kv_heads, -1))
    part = empty_part(grouped.shape[:3], head_size)  # m, l: [num_seqs, num_kv_heads, group]
    for block_idx in range(num_blocks(int(seq_lens.max()), block_size)):
        token, is_token = tokens_of_block(block_idx, seq_lens, block_size)
        numbers = block_tables[:, block_idx]
        k, v = k_cache[numbers].float(), v_cache[numbers].float()
        qk = scores_of_block(grouped, k, token, seq_lens, scale, alibi_slopes)
        qk = qk.masked_fill(~is_token[:, None, None], -torch.inf)
        v = v.masked_fill(~is_token[:, None, :, None], 0.0)  # 0 times NaN would be NaN
        part = merge(part, part_of(qk, v))
    out = part.acc / part.l[..., None]
    return out.flatten(1, 2).to(q.dtype)


# 20 · Prefix cache --------------------------------------------------------------------------------


class CachingPool(Pool):
    """A pool that can find full blocks by name, in use or free."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        super().__init__(num_blocks, block_size)
        self.free_blocks.reverse()  # the first one is taken next; released blocks join at the end
        self.named: dict[str, int] = {}  # name -> block


def hashed(parent: str, tokens: list[int]) -> str:
    return sha256(f"{parent} {tokens}".encode()).hexdigest()[:8]


def block_names(tokens: list[int], block_size: int) -> list[str]:
    names, parent = [], ""
    for end in range(block_size, len(tokens) + 1, block_size):  # full blocks only
        parent = hashed(parent, tokens[end - block_size : end])
        names.append(parent)
    return names


def known_blocks(pool: CachingPool, names: list[str]) -> list[int]:
    blocks = []
    for name in names:
        if name not in pool.named:
            break
        blocks.append(pool.named[name])
    return blocks


def share(pool: CachingPool, block: int) -> None:
    if pool.ref_counts[block] == 0:  # free, and its K and V are still there
        pool.free_blocks.remove(block)
    pool.ref_counts[block] += 1


def take_block(pool: CachingPool) -> int:
    if not pool.free_blocks:
        raise OutOfBlocks("no block is free")
    block = pool.free_blocks.pop(0)  # released longest ago
    pool.ref_counts[block] = 1
    pool.named = {name: other for name, other in pool.named.items() if other != block}
    return block


def left_to_compute(num_tokens: int, num_known: int, block_size: int) -> int:
    most = (num_tokens - 1) // block_size  # the last token is computed in any case
    return num_tokens - min(num_known, most) * block_size


def arrive(pool: CachingPool, tokens: list[int]) -> tuple[Sequence, int]:
    """A sequence with a prompt, and how many of its tokens were found."""
    names, size = block_names(tokens, pool.block_size), pool.block_size
    known = known_blocks(pool, names)
    found = len(tokens) - left_to_compute(len(tokens), len(known), size)
    blocks = known[: found // size]
    for block in blocks:  # first, so that none of them is evicted
        share(pool, block)
    while len(blocks) < num_blocks(len(tokens), size):
        blocks.append(take_block(pool))
    for name, block in zip(names, blocks, strict=False):  # the last block may have no name
        pool.named.setdefault(name, block)
    return Sequence(tokens, blocks), found
