"""Engines before paging: each request has tensors of its own, which every step puts together.

These take the place of the engine's Runner. The model around attention, the scheduler and the
choice of tokens stay the same; the ways differ only in where K and V are kept.
"""

import torch
from torch import Tensor
from torch.nn.functional import pad, scaled_dot_product_attention

from pa_tutorial.engine.batch import Batch
from pa_tutorial.engine.runner import Model, prefill_attention


def mask_of(seq_lens: Tensor) -> Tensor | None:
    """[num_seqs, 1, 1, longest]: which places hold tokens; None if all of them do."""
    longest = int(seq_lens.max())
    if int(seq_lens.min()) == longest:
        return None
    return (torch.arange(longest) < seq_lens[:, None])[:, None, None]


def attend_padded(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float | None = None
) -> Tensor:
    """Masked attention of one query for each sequence.

    q        [num_seqs, num_heads, head_size]
    k, v     [num_seqs, num_heads, longest, head_size]
    returns  the shape of q
    """
    return scaled_dot_product_attention(q[:, :, None], k, v, mask, scale=scale)[:, :, 0]


class Pasts:
    """Runs steps over the past of each sequence and layer, whatever that is.

    A sequence is known by its first block, which no other has: there is no prefix caching here.
    """

    def __init__(self, model: Model) -> None:
        self.model = model

    @torch.inference_mode()
    def run(self, batch: Batch) -> Tensor:
        """As Runner.run."""
        firsts = batch.block_tables[:, 0].tolist()

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            keys = [(layer, first) for first in firsts]
            self.write(keys, k, v, batch)
            return torch.cat([*self.decode(keys, q, batch), *self.prefill(keys, q, batch)])

        return self.model.run(batch.input_ids, batch.positions, attend, rows=batch.last_rows)

    def write(self, keys: list, k: Tensor, v: Tensor, batch: Batch) -> None:
        """Append the new K and V of each sequence to its past."""
        seq_lens, row = batch.seq_lens.tolist(), 0
        for key, seq_len, query_len in zip(keys, seq_lens, batch.query_lens, strict=True):
            if query_len == seq_len:
                self.begin(key)
            new_k, new_v = (x[row : row + query_len].transpose(0, 1) for x in (k, v))
            self.append(key, new_k, new_v)
            row += query_len

    def build(self, keys: list, batch: Batch) -> tuple[Tensor, Tensor]:
        """K and V of all sequences that decode, [num_seqs, num_heads, longest, head_size]."""
        lens = batch.seq_lens[: batch.num_decodes].tolist()
        longest = max(lens)
        k, v = zip(*(self.past(key) for key in keys[: batch.num_decodes]), strict=True)
        if min(lens) < longest:
            k, v = (
                [pad(x, (0, 0, 0, longest - n)) for x, n in zip(xs, lens, strict=True)]
                for xs in (k, v)
            )
        return torch.stack(tuple(k)), torch.stack(tuple(v))

    def attention(self, q: Tensor, k: Tensor, v: Tensor, batch: Batch) -> Tensor:
        return attend_padded(q, k, v, mask_of(batch.seq_lens[: len(q)]), self.model.config.scale)

    def decode(self, keys: list, q: Tensor, batch: Batch) -> list[Tensor]:
        if not batch.num_decodes:
            return []
        return [self.attention(q[: batch.num_decodes], *self.build(keys, batch), batch)]

    def prefill(self, keys: list, q: Tensor, batch: Batch) -> list[Tensor]:
        """Sequence by sequence, as in Runner.attention."""
        outs, first = [], batch.num_decodes
        for sequence in range(batch.num_decodes, len(keys)):
            last = first + batch.query_lens[sequence]
            k, v = (x.transpose(0, 1) for x in self.past(keys[sequence]))
            outs.append(prefill_attention(q[first:last], k, v, self.model.config.scale))
            first = last
        return outs

    # What differs. k and v have the shape [num_heads, num_tokens, head_size].

    def begin(self, key: tuple[int, int]) -> None:
        """A new sequence has nothing yet."""
        raise NotImplementedError

    def append(self, key: tuple[int, int], k: Tensor, v: Tensor) -> None:
        raise NotImplementedError

    def past(self, key: tuple[int, int]) -> tuple[Tensor, Tensor]:
        """All K and V of a sequence in a layer."""
        raise NotImplementedError


class BlockLists(Pasts):
    """One pool of blocks, and a list of blocks for each sequence and layer. In every step a loop
    in Python copies the blocks of each past side by side, block by block.

    Source: the rosellm project, "paged attention in rosellm": what its 281.7 tokens/s measure, the
    engine with one tensor for all blocks and without paged attention.
    """

    def __init__(self, model: Model, num_blocks: int, block_size: int) -> None:
        super().__init__(model)
        config = model.config
        shape = (num_blocks, config.num_kv_heads, block_size, config.head_size)
        self.block_size = block_size
        self.k = torch.empty(config.num_layers, *shape)
        self.v = torch.empty(config.num_layers, *shape)
        self.free = [list(range(num_blocks)) for _ in range(config.num_layers)]
        self.blocks: dict[tuple[int, int], list[int]] = {}
        self.num_tokens: dict[tuple[int, int], int] = {}

    def begin(self, key: tuple[int, int]) -> None:
        self.free[key[0]] += self.blocks.pop(key, [])
        self.blocks[key], self.num_tokens[key] = [], 0

    def append(self, key: tuple[int, int], k: Tensor, v: Tensor) -> None:
        layer, written = key[0], 0
        while written < k.shape[1]:
            offset = self.num_tokens[key] % self.block_size
            if offset == 0:
                self.blocks[key].append(self.free[layer].pop())
            take = min(self.block_size - offset, k.shape[1] - written)
            block = self.blocks[key][-1]
            for pool, new in ((self.k, k), (self.v, v)):
                piece = new[:, written : written + take, :]
                pool[layer, block][:, offset : offset + take, :].copy_(piece)
            self.num_tokens[key] += take
            written += take

    def past(self, key: tuple[int, int]) -> tuple[Tensor, Tensor]:
        layer, num_tokens = key[0], self.num_tokens[key]
        num_heads, head_size = self.k.shape[2], self.k.shape[4]
        out_k = self.k.new_empty(num_heads, num_tokens, head_size)
        out_v = torch.empty_like(out_k)
        first = 0
        for block in self.blocks[key]:
            last = min(first + self.block_size, num_tokens)
            k_block, v_block = self.k[layer, block], self.v[layer, block]
            out_k[:, first:last, :].copy_(k_block[:, : last - first, :])
            out_v[:, first:last, :].copy_(v_block[:, : last - first, :])
            first = last
        return out_k, out_v


class ContiguousPasts(Pasts):
    """One tensor for each sequence and layer; each step makes a new one, longer by a token."""

    def __init__(self, model: Model) -> None:
        super().__init__(model)
        self.pasts: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}

    def begin(self, key: tuple[int, int]) -> None:
        self.pasts.pop(key, None)

    def append(self, key: tuple[int, int], k: Tensor, v: Tensor) -> None:
        if key in self.pasts:
            old_k, old_v = self.pasts[key]
            k, v = torch.cat([old_k, k], dim=1), torch.cat([old_v, v], dim=1)
        else:  # not a view of the whole prefill's K and V
            k, v = k.contiguous(), v.contiguous()
        self.pasts[key] = k, v

    def past(self, key: tuple[int, int]) -> tuple[Tensor, Tensor]:
        return self.pasts[key]


class NoAttention(Pasts):
    """Nothing is kept and nothing is read: what the rest of a step costs. Its tokens are wrong."""

    @torch.inference_mode()
    def run(self, batch: Batch) -> Tensor:
        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return q

        return self.model.run(batch.input_ids, batch.positions, attend, rows=batch.last_rows)
