"""The batch of a step: what many sequences compute, as a few tensors."""

from collections.abc import Sequence as Several
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from pa_tutorial.arguments import require_device, require_type
from pa_tutorial.engine.request import Sequence
from pa_tutorial.engine.scheduler import Scheduled
from pa_tutorial.paging.pages import Pages


@dataclass(frozen=True)
class Batch:
    """The tokens of a step, concatenated without padding; the sequences that decode come first.

    input_ids     [num_tokens] int64
    positions     [num_tokens] int64   of each token in its sequence
    slot_mapping  [num_tokens] int64   where its K and V are written; -1 if they are cached already
    block_tables  [num_seqs, max_num_blocks_per_seq] int32, padded with 0
    seq_lens      [num_seqs] int32     tokens of each sequence in the cache after this step
    query_lens    how many of those tokens, always the last ones, this step computes
    num_decodes   the first num_decodes sequences compute one token each
    last_rows     [num_sampled] int64  indexes into input_ids after which a next token is chosen
    sampled       the sequences that get these next tokens
    copies        (source, destination) blocks to copy, in this order, before anything is written
    """

    input_ids: Tensor
    positions: Tensor
    slot_mapping: Tensor
    block_tables: Tensor
    seq_lens: Tensor
    query_lens: list[int]
    num_decodes: int
    last_rows: Tensor
    sampled: list[Sequence]
    copies: list[tuple[int, int]]

    def to(self, device: torch.device) -> "Batch":
        """The same batch with its tensors on a device."""
        require_device(device)
        tensors = {n: value for n, value in vars(self).items() if isinstance(value, Tensor)}
        return replace(self, **{name: tensor.to(device) for name, tensor in tensors.items()})


def build_batch(plan: Several[Scheduled], pages: Pages) -> Batch:
    """The tensors of a step, built from the scheduler's plan and the sequences' block tables.

    A sequence that computes one token decodes, whether that token was generated or is the last
    of a prompt: it has one query, and everything it attends to is in the cache.

    Source: vLLM, ModelInputForCPUBuilder in vllm/worker/cpu_model_runner.py.
    """
    fit = isinstance(plan, Several) and all(isinstance(one, Scheduled) for one in plan)
    require_type(fit, "plan", plan, "a list of Scheduled")
    require_type(isinstance(pages, Pages), "pages", pages, "a Pages, such as BlockPages")
    input_ids, positions, slots, last_rows = [], [], [], []
    ordered = sorted(plan, key=lambda scheduled: len(scheduled.slots) > 1)  # decodes first
    for scheduled in ordered:
        first, last = scheduled.first, scheduled.first + len(scheduled.slots)
        input_ids += scheduled.sequence.token_ids[first:last]
        positions += range(first, last)
        slots += scheduled.slots
        if scheduled.is_last:
            last_rows.append(len(input_ids) - 1)
    query_lens = [len(scheduled.slots) for scheduled in ordered]
    sequences = [scheduled.sequence for scheduled in ordered]
    seq_lens = [sequence.num_in_pages for sequence in sequences]
    return Batch(
        input_ids=torch.tensor(input_ids),
        positions=torch.tensor(positions),
        slot_mapping=torch.tensor(slots),
        block_tables=pages.tables([sequence.age for sequence in sequences]),
        seq_lens=torch.tensor(seq_lens, dtype=torch.int32),
        query_lens=query_lens,
        num_decodes=sum(query_len == 1 for query_len in query_lens),
        last_rows=torch.tensor(last_rows, dtype=torch.int64),
        sampled=[scheduled.sequence for scheduled in ordered if scheduled.is_last],
        # In the order in which the blocks were allocated, not in the order of the batch.
        copies=[pair for scheduled in plan for pair in scheduled.copies],
    )
