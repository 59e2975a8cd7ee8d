"""build_batch against an oracle written apart: loops, and vLLM's rule for slots."""

from random import Random

import pytest
import torch

from pa_tutorial.engine.batch import build_batch
from pa_tutorial.engine.request import Request, SamplingParams, Sequence
from pa_tutorial.engine.scheduler import Scheduled, Scheduler
from pa_tutorial.paging.allocator import BlockAllocator
from pa_tutorial.paging.block_table import BlockTable


def some_plan(random: Random, block_size: int) -> list[Scheduled]:
    """Sequences with something in the cache, and something to compute."""
    allocator = BlockAllocator(200)
    plan = []
    for number in range(random.randrange(1, 7)):
        cached, new, later = random.randrange(9), random.choice([1, 1, 2, 5]), random.choice([0, 3])
        tokens = [random.randrange(90) for _ in range(cached + new + later)]
        sequence = Sequence(Request(number, tokens, SamplingParams()), 0, tokens)
        sequence.table = BlockTable(allocator, block_size)
        sequence.table.append(tokens[:cached])
        appended = sequence.table.append(tokens[cached : cached + new])
        copies = [(number + 1, number + 50)] * random.randrange(2)
        plan.append(Scheduled(sequence, cached, appended.slots, copies, is_last=later == 0))
    return plan


@pytest.mark.parametrize("block_size", [1, 4])
@pytest.mark.parametrize("seed", range(20))
def test_batch_is_that_of_the_loops(seed: int, block_size: int) -> None:
    plan = some_plan(Random(seed), block_size)
    batch = build_batch(plan)

    decodes = [scheduled for scheduled in plan if len(scheduled.slots) == 1]
    prefills = [scheduled for scheduled in plan if len(scheduled.slots) > 1]
    width = max(len(scheduled.sequence.table.blocks) for scheduled in plan)
    tokens, positions, slots, tables, seq_lens, last_rows, sampled = [], [], [], [], [], [], []
    for scheduled in (*decodes, *prefills):
        sequence, table = scheduled.sequence, scheduled.sequence.table.blocks
        seq_len = scheduled.first + len(scheduled.slots)
        for position in range(scheduled.first, seq_len):
            tokens.append(sequence.token_ids[position])
            positions.append(position)
            slots.append(table[position // block_size] * block_size + position % block_size)
        tables.append([*table, *[0] * (width - len(table))])
        seq_lens.append(seq_len)
        if scheduled.is_last:
            last_rows.append(len(tokens) - 1)
            sampled.append(sequence)

    assert batch.input_ids.tolist() == tokens
    assert batch.positions.tolist() == positions
    assert batch.slot_mapping.tolist() == slots
    assert batch.block_tables.tolist() == tables
    assert batch.seq_lens.tolist() == seq_lens
    assert batch.query_lens == [len(scheduled.slots) for scheduled in (*decodes, *prefills)]
    assert batch.num_decodes == len(decodes)
    assert batch.last_rows.tolist() == last_rows
    assert batch.sampled == sampled
    assert batch.copies == [pair for scheduled in plan for pair in scheduled.copies]


def test_types_are_those_of_the_kernels() -> None:
    batch = build_batch(some_plan(Random(0), 4))
    assert batch.block_tables.dtype == batch.seq_lens.dtype == torch.int32
    wide = batch.input_ids, batch.positions, batch.slot_mapping, batch.last_rows
    assert {tensor.dtype for tensor in wide} == {torch.int64}


def test_a_batch_in_which_nobody_is_due_has_no_rows_to_score() -> None:
    scheduler = Scheduler(BlockAllocator(9), 4, chunk_size=2)
    scheduler.admit(Request(0, [1, 2, 3], SamplingParams()))
    batch = build_batch(scheduler.schedule())
    assert batch.last_rows.dtype == torch.int64
    assert (len(batch.last_rows), batch.sampled) == (0, [])
