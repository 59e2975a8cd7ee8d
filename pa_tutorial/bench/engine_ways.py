"""The ways to keep K and V that notebook 16 compares: before paging, gathered, and paged.

Before paging each request has tensors of its own, which every step puts together. These take the
place of the engine's Runner. The model around attention, the scheduler and the choice of tokens
stay the same; the ways differ only in where K and V are kept.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import pad, scaled_dot_product_attention

from pa_tutorial.engine.batch import Batch
from pa_tutorial.engine.runner import Runner, prefill_attention

Attention = Callable[[Tensor, Tensor, Tensor, Tensor | None, float], Tensor]
Key = tuple[int, int]  # a layer, and the first block of a sequence, which no other has


def mask_of(seq_lens: Tensor) -> Tensor | None:
    """[num_seqs, 1, 1, longest]: which places hold tokens; None if all of them do."""
    longest = int(seq_lens.max())
    if int(seq_lens.min()) == longest:
        return None
    return (torch.arange(longest) < seq_lens[:, None])[:, None, None]


def attend_padded(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    """Masked attention of one query for each sequence.

    q        [num_seqs, num_heads, head_size]
    k, v     [num_seqs, num_heads, longest, head_size]
    returns  the shape of q
    """
    return scaled_dot_product_attention(q[:, :, None], k, v, mask, scale=scale)[:, :, 0]


def matmul_padded(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    """The definition of attention; shapes as in attend_padded."""
    qk = (scale * q)[:, :, None] @ k.mT
    if mask is not None:
        qk = qk.masked_fill(~mask, float("-inf"))
    return (qk.softmax(dim=-1) @ v)[:, :, 0]


# Before paging ----------------------------------------------------------------------------------


class Pasts:
    """Runs steps over the past of each sequence and layer, whatever that is.

    A sequence is known by its first block: there is no prefix caching here.
    """

    def __init__(self, runner: Runner) -> None:
        self.model, self.pasts = runner.model, {}

    @torch.inference_mode()
    def run(self, batch: Batch) -> Tensor:
        """As Runner.run."""
        firsts = batch.block_tables[:, 0].tolist()

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return self.attend([(layer, first) for first in firsts], q, k, v, batch)

        return self.model.run(batch.input_ids, batch.positions, attend, rows=batch.last_rows)

    def attend(self, keys: list[Key], q: Tensor, k: Tensor, v: Tensor, batch: Batch) -> Tensor:
        """Append the new K and V of each sequence to its past, then attend to all of it."""
        scale, outs = self.model.config.scale, []
        q, k, v = (x.split(batch.query_lens) for x in (q, k, v))
        for i, key in enumerate(keys):
            if len(k[i]) == int(batch.seq_lens[i]):
                self.begin(key)
            self.append(key, k[i].transpose(0, 1), v[i].transpose(0, 1))
        decodes = batch.num_decodes
        if decodes:
            mask = mask_of(batch.seq_lens[:decodes])
            padded = torch.cat(q[:decodes]), *self.build(keys[:decodes])
            outs.append(attend_padded(*padded, mask, scale))
        for i in range(decodes, len(keys)):
            past = (x.transpose(0, 1) for x in self.past(keys[i]))
            outs.append(prefill_attention(q[i], *past, scale))
        return torch.cat(outs)

    def build(self, keys: list[Key]) -> list[Tensor]:
        """K and V of sequences that decode, [num_seqs, num_heads, longest, head_size]."""
        built = []
        for pasts in zip(*map(self.past, keys), strict=True):
            longest = max(x.shape[1] for x in pasts)
            if min(x.shape[1] for x in pasts) < longest:
                pasts = [pad(x, (0, 0, 0, longest - x.shape[1])) for x in pasts]
            built.append(torch.stack(tuple(pasts)))
        return built

    # What differs. k and v have the shape [num_heads, num_tokens, head_size].

    def begin(self, key: Key) -> None:
        """A new sequence has nothing yet."""
        self.pasts.pop(key, None)

    def append(self, key: Key, k: Tensor, v: Tensor) -> None:
        raise NotImplementedError

    def past(self, key: Key) -> tuple[Tensor, Tensor]:
        """All K and V of a sequence in a layer."""
        raise NotImplementedError


class ContiguousPasts(Pasts):
    """One tensor for each sequence and layer; each step makes a new one, longer by a token."""

    def append(self, key: Key, k: Tensor, v: Tensor) -> None:
        if key in self.pasts:
            old_k, old_v = self.pasts[key]
            k, v = torch.cat([old_k, k], dim=1), torch.cat([old_v, v], dim=1)
        else:  # not a view of the whole prefill's K and V
            k, v = k.contiguous(), v.contiguous()
        self.pasts[key] = k, v

    def past(self, key: Key) -> tuple[Tensor, Tensor]:
        return self.pasts[key]


class BlockLists(Pasts):
    """One pool of blocks, and a list of blocks for each sequence and layer. In every step a loop
    in Python copies the blocks of each past side by side, block by block.

    Source: the rosellm project, "paged attention in rosellm": what its 281.7 tokens/s measure, the
    engine with one tensor for all blocks and without paged attention.
    """

    def __init__(self, runner: Runner) -> None:
        super().__init__(runner)
        config, layout = runner.model.config, runner.cache.layout
        self.block_size, num_layers = layout.block_size, config.num_layers
        shape = layout.num_blocks, config.num_kv_heads, layout.block_size, config.head_size
        self.pools = [torch.empty(num_layers, *shape) for _ in "kv"]
        self.free = [list(range(layout.num_blocks)) for _ in range(num_layers)]
        self.num_tokens: dict[Key, int] = {}

    def begin(self, key: Key) -> None:
        self.free[key[0]] += self.pasts.pop(key, [])
        self.pasts[key], self.num_tokens[key] = [], 0

    def append(self, key: Key, k: Tensor, v: Tensor) -> None:
        layer, written = key[0], 0
        while written < k.shape[1]:
            offset = self.num_tokens[key] % self.block_size
            if offset == 0:
                self.pasts[key].append(self.free[layer].pop())
            take = min(self.block_size - offset, k.shape[1] - written)
            for pool, new in zip(self.pools, (k, v), strict=True):
                block = pool[layer, self.pasts[key][-1]]
                block[:, offset : offset + take].copy_(new[:, written : written + take])
            self.num_tokens[key] += take
            written += take

    def past(self, key: Key) -> tuple[Tensor, Tensor]:
        layer, num_tokens = key[0], self.num_tokens[key]
        k, v = (p.new_empty(p.shape[2], num_tokens, p.shape[4]) for p in self.pools)
        for index, block in enumerate(self.pasts[key]):
            first = index * self.block_size
            take = min(self.block_size, num_tokens - first)
            for pool, out in zip(self.pools, (k, v), strict=True):
                out[:, first : first + take].copy_(pool[layer, block][:, :take])
        return k, v


class NoAttention(Pasts):
    """Nothing is kept and nothing is read: what the rest of a step costs. Its tokens are wrong."""

    def attend(self, keys: list[Key], q: Tensor, k: Tensor, v: Tensor, batch: Batch) -> Tensor:
        return q


# Gathered ---------------------------------------------------------------------------------------


class GatherStage:
    """The best that torch can do with blocks: one index_select into memory that is there already.

    Called as a stage of the ladder. The numbers of rows are made once a step and serve every
    layer and both K and V; places without a token are sliced away, or masked where lengths differ.

    token_major  False: the plain layout, where a row is what one block has of one head. True: a
                 token-major cache, where it is a whole block; attention reads a transposed view.
    """

    def __init__(self, runner: Runner, attention: Attention, token_major: bool) -> None:
        layout = runner.cache.layout
        self.attention, self.token_major = attention, token_major
        # A place for every block: nothing is shared, so no batch names more. Touched, so that it
        # is the system's no more.
        size = layout.num_blocks * layout.num_kv_heads * layout.block_size * layout.head_size
        self.memory = torch.zeros(2, size)
        self.tables: Tensor | None = None
        for caches in (runner.cache.k, runner.cache.v):
            for index, cache in enumerate(caches):
                cache.zero_()  # a masked place has weight 0; times NaN that would be NaN
                if token_major:
                    caches[index] = cache.transpose(1, 2).contiguous().transpose(1, 2)

    def __call__(self, q: Tensor, k_cache: Tensor, v_cache: Tensor, *step: object) -> Tensor:
        """step  block_tables, seq_lens, scale"""
        block_tables, seq_lens, scale = step[:3]
        if self.tables is None or self.tables.data_ptr() != block_tables.data_ptr():
            self.tables = block_tables  # held, so that no other tensor gets its address
            self.rows = block_tables.long()
            if not self.token_major:
                heads = torch.arange(k_cache.shape[1])
                self.rows = self.rows[:, None] * len(heads) + heads[:, None]
            self.mask, self.longest = mask_of(seq_lens), int(seq_lens.max())
        k, v = map(self.gather, (k_cache, v_cache), self.memory)
        return self.attention(q, k, v, self.mask, scale)

    def gather(self, cache: Tensor, memory: Tensor) -> Tensor:
        """[num_seqs, num_heads, longest, head_size]"""
        num_seqs, (_, num_heads, _, head_size) = len(self.tables), cache.shape
        rows = (
            cache.transpose(1, 2).flatten(1) if self.token_major else cache.flatten(2).flatten(0, 1)
        )
        out = memory[: self.rows.numel() * rows.shape[1]].view(-1, rows.shape[1])
        torch.index_select(rows, 0, self.rows.flatten(), out=out)
        if self.token_major:
            return out.view(num_seqs, -1, num_heads, head_size)[:, : self.longest].transpose(1, 2)
        return out.view(num_seqs, num_heads, -1, head_size)[:, :, : self.longest]


def gathering(attention: Attention, token_major: bool) -> Callable[[Runner], Runner]:
    """Of the engine's Runner with the plain layout: the same with such a gather as its stage."""

    def change(runner: Runner) -> Runner:
        runner.stage = replace(runner.stage, at=GatherStage(runner, attention, token_major))
        return runner

    return change


@dataclass(frozen=True)
class Way:
    """words: for tables and figures. stage: of the engine. runner: in the place of its Runner."""

    words: str
    stage: str = "cpu"
    runner: Callable | None = None


GATHERS = {
    f"gather_{rows}_{name}": Way(
        f"gather, {rows.removesuffix('s')}-major, {name}",
        runner=gathering(attention, rows == "tokens"),
    )
    for rows in ("blocks", "tokens")
    for name, attention in (("sdpa", attend_padded), ("matmul", matmul_padded))
}
WAYS = {
    "block_lists": Way("blocks copied by a loop in Python", runner=BlockLists),
    "contiguous": Way("contiguous pasts, cat and stack", runner=ContiguousPasts),
    **GATHERS,
    **{name: Way(name, stage=name) for name in ("paged_gather", "paged_online", "cpu")},
    "no_attention": Way("no attention at all", runner=NoAttention),
}
