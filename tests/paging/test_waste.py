"""The waste simulation, on examples that were worked out by hand."""

import numpy as np
import pytest

from pa_tutorial.paging.reservations import Blocks, Contiguous, Request, long_tailed_requests
from pa_tutorial.paging.waste import (
    NOBODY,
    Kind,
    Server,
    bytes_per_block,
    memory_map_at,
    num_available_blocks,
    simulate,
)

POOL = 1200
MEMORIES = {
    "max": Contiguous(POOL, "max", max_len=300),
    "oracle": Contiguous(POOL, "oracle", max_len=300),
    "blocks": Blocks(POOL, 16),
}


@pytest.mark.parametrize("memory", MEMORIES.values(), ids=list(MEMORIES))
def test_slots_are_counted_once_at_every_step(memory) -> None:
    requests = long_tailed_requests(40, seed=3, max_len=300)
    server, admitted = Server(requests, memory), 0
    while not server.done:
        server.step()
        held = [slot for slots in memory.slots.values() for slot in slots]
        assert len(held) == len(set(held)), "a slot is owned twice"
        assert set(memory.slots) == set(server.running)
        drawn, counts = server.memory_map(), server.counts()
        assert np.bincount(drawn.kinds, minlength=len(Kind)).tolist() == counts
        assert sum(counts) == POOL
        assert set(np.flatnonzero(drawn.owner != NOBODY)) == set(held)
        assert counts[Kind.TOKENS] == sum(server.num_tokens[n] for n in server.running)
        assert isinstance(memory, Contiguous) or not counts[Kind.EXTERNAL]
        queue = list(server.running) + list(server.waiting)
        assert queue == sorted(queue), "a younger request stands before an older one"
        admitted = max([admitted, *server.running])
    assert admitted == 39
    assert server.num_tokens == [request.final_len for request in requests]


@pytest.mark.parametrize(
    ("requests", "memory", "after"),
    [
        # Of the longest text 8 + 8 slots are held; one token will come; 3 + 6 are never used.
        ([(3, 2), (1, 1)], Contiguous(20, "max", 8), {1: [6, 1, 9, 0, 4]}),
        # A block is taken when the last one is full; a slot of the second is never used.
        ([(3, 4)], Blocks(16, 4), {1: [4, 0, 0, 0, 12], 2: [5, 2, 1, 0, 8], 4: [7, 0, 1, 0, 8]}),
        # At step 2 the first takes the third block: the second gives its own back and comes again.
        ([(1, 4), (1, 2)], Blocks(6, 2), {1: [4, 0, 0, 0, 2], 2: [3, 1, 0, 0, 2]}),
        # The third wants 4 slots: at first 2 are free, then exactly 4, but 2 and 2, and then all 8.
        (
            [(1, 1), (1, 3), (1, 3)],
            Contiguous(8, "oracle"),
            {1: [4, 2, 0, 0, 2], 2: [3, 1, 0, 4, 0], 3: [4, 0, 0, 4, 0], 4: [2, 2, 0, 0, 4]},
        ),
    ],
)
def test_slots_of_each_kind_by_hand(requests, memory, after) -> None:
    server = Server([Request(*lens) for lens in requests], memory)
    for step in range(max(after) + 1):
        assert server.counts() == after.get(step, server.counts()), step
        server.step()


def test_the_youngest_gives_its_blocks_back_and_comes_again() -> None:
    """Three blocks of 2, and at first one for each. At step 2 the first request takes the third."""
    server = Server([Request(1, 4), Request(1, 2)], Blocks(6, 2))
    server.step()
    server.step()
    assert (server.running, list(server.waiting), server.num_preemptions) == ([0], [1], 1)
    # Its two tokens are kept as text.
    assert (server.num_tokens, server.num_recomputed) == ([3, 2], 2)
    server.step()
    assert server.running == [0]  # 3 tokens need two blocks; one is free


def test_means_are_over_the_steps_with_a_queue() -> None:
    """One request of 4 slots at a time: steps 1-3 with a queue, steps 4-6 without."""
    run = simulate([Request(1, 3), Request(1, 3)], Contiguous(4, "oracle"))
    assert run.num_steps == 6
    assert run.crowded.tolist() == [True] * 3 + [False] * 3
    assert run.mean_running == 1
    assert run.shares[Kind.TOKENS] == pytest.approx((2 + 3 + 4) / 3 / 4)
    assert sum(run.shares.values()) == pytest.approx(1)
    late = memory_map_at(99, [Request(1, 1)], Blocks(4, 2))  # that of the last step
    assert late.owner.tolist() == [0, 0, NOBODY, NOBODY]


def test_bytes_of_a_block_and_the_blocks_that_fit() -> None:
    assert bytes_per_block(40, 16, 40, 128, 2) == 16 * 819_200  # of OPT-13B
    assert num_available_blocks(1000, 0.5, 100, 100) == 4
    assert num_available_blocks(1000, 0.5, 101, 100) == 3


ONE = [Request(1, 1)]


@pytest.mark.parametrize(
    ("call", "arguments", "message"),
    [
        (Contiguous, (9, "best"), "policy is 'best'"),
        (Blocks, (3, 4), "num_slots is 3; .* 4"),
        (Server, ([], Blocks(9, 1)), "requests is empty"),
        (Server, ([*ONE, Request(4, 5)], Blocks(11, 4)), "request 1 .* is 9; .* at most 8"),
        (Server, (ONE, Contiguous(60, "max", 64)), "request 0 is 64; .* most 60"),
        (lambda: simulate(ONE, Blocks(8, 4)).shares, (), "at which a request waits is 0"),
        (num_available_blocks, (100, 0.9, 80, 11), "10 bytes; .* least 11"),
    ],
)
def test_bad_arguments_are_refused(call, arguments, message) -> None:
    with pytest.raises(ValueError, match=message):
        call(*arguments)
