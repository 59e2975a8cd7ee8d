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
    "max": lambda: Contiguous(POOL, "max", max_len=300),
    "oracle": lambda: Contiguous(POOL, "oracle", max_len=300),
    **{f"blocks of {size}": lambda size=size: Blocks(POOL, size) for size in (1, 7, 16, 64)},
}
each_memory = pytest.mark.parametrize("make", MEMORIES.values(), ids=list(MEMORIES))


def short_requests() -> list[Request]:
    return long_tailed_requests(60, seed=3, max_len=300)


def kinds_of(counts: list[int]) -> dict[str, int]:
    return {kind.name: count for kind, count in zip(Kind, counts, strict=True) if count}


def counts_after(steps: int, server: Server) -> dict[str, int]:
    for _ in range(steps):
        server.step()
    return kinds_of(server.counts())


# What holds at every step ------------------------------------------------------------------------


@each_memory
def test_every_slot_has_one_kind_and_at_most_one_owner(make) -> None:
    memory = make()
    server = Server(short_requests(), memory)
    while not server.done:
        server.step()
        held = [slot for slots in memory.slots.values() for slot in slots]
        assert len(held) == len(set(held)), "a slot is owned twice"
        assert set(memory.slots) == set(server.running)
        drawn = server.memory_map()
        assert np.bincount(drawn.kinds, minlength=len(Kind)).tolist() == server.counts()
        assert sum(server.counts()) == POOL
        assert set(np.flatnonzero(drawn.owner != NOBODY)) == set(held)


@each_memory
def test_tokens_are_counted_once_for_each_that_is_stored(make) -> None:
    requests = short_requests()
    server = Server(requests, make())
    while not server.done:
        server.step()
        assert server.counts()[Kind.TOKENS] == sum(server.num_tokens[n] for n in server.running)
    assert server.num_tokens == [request.final_len for request in requests]


@each_memory
def test_nobody_overtakes_and_nobody_starves(make) -> None:
    server = Server(short_requests(), make())
    admitted = 0
    while not server.done:
        server.step()
        queue = list(server.running) + list(server.waiting)
        assert queue == sorted(queue), "a younger request stands before an older one"
        admitted = max([admitted, *server.running])
    assert admitted == 59


@each_memory
def test_the_same_run_twice_is_the_same(make) -> None:
    memory = make()
    first, again = simulate(short_requests(), memory), simulate(short_requests(), memory)
    assert np.array_equal(first.counts, again.counts)
    maps = [memory_map_at(40, short_requests(), memory) for _ in range(2)]
    assert np.array_equal(maps[0].owner, maps[1].owner)


@pytest.mark.parametrize("size", [1, 7, 16, 64])
def test_blocks_have_no_gaps_that_are_too_small(size) -> None:
    assert simulate(short_requests(), Blocks(POOL, size)).counts[:, Kind.EXTERNAL].max() == 0


# By hand: contiguous ----------------------------------------------------------------------------


def test_maximum_reserves_for_the_longest_text() -> None:
    server = Server([Request(3, 2), Request(1, 1)], Contiguous(20, "max", max_len=8))
    # 8 + 8 slots are held; tokens 3 + 1 and 1 + 1; one token will come; 3 + 6 are never used.
    assert counts_after(1, server) == {"TOKENS": 6, "RESERVED": 1, "INTERNAL": 9, "FREE": 4}


def test_oracle_wastes_nothing_inside() -> None:
    server = Server([Request(3, 4)], Contiguous(10, "oracle"))
    assert counts_after(1, server) == {"TOKENS": 4, "RESERVED": 3, "FREE": 3}
    assert counts_after(1, server) == {"TOKENS": 5, "RESERVED": 2, "FREE": 3}


def test_free_slots_are_external_only_if_together_they_are_enough() -> None:
    short, middle, long = Request(1, 1), Request(1, 2), Request(1, 9)
    # 2 + 10 + 3 + 10 slots of 27 are held. Two are left; the next request needs 10.
    server = Server([short, long, middle, long, long], Contiguous(27, "oracle"))
    assert counts_after(1, server)["FREE"] == 2
    # The request of 2 is gone: slots 0-1 and 25-26 are free, 4 in all. Still too few.
    assert counts_after(1, server)["FREE"] == 4
    # The request of 3 is gone too: 7 in all.
    assert counts_after(1, server)["FREE"] == 7

    server = Server([middle, long, middle, long, Request(1, 6)], Contiguous(27, "oracle"))
    assert counts_after(2, server)["FREE"] == 1
    # Slots 0-2, 13-15 and 26 are free: 7 in all, and that is what the next request needs.
    counts = counts_after(1, server)
    assert counts["EXTERNAL"] == 7
    assert "FREE" not in counts


def test_first_fit_takes_the_first_gap_that_is_large_enough() -> None:
    memory = Contiguous(20, "oracle")
    for number, size in enumerate((4, 2, 6, 2)):
        memory.take(number, size)
    memory.release(0)
    memory.release(2)
    memory.take(4, 5)  # slots 0-3 are too few, 6-11 are enough
    assert memory.slots[4] == range(6, 11)
    memory.take(5, 3)
    assert memory.slots[5] == range(0, 3)


# By hand: blocks --------------------------------------------------------------------------------


def test_a_block_is_taken_when_the_last_one_is_full() -> None:
    server = Server([Request(3, 4)], Blocks(16, 4))
    assert counts_after(1, server) == {"TOKENS": 4, "FREE": 12}
    # A second block; the request will have 7 tokens, so one of its slots is never used.
    assert counts_after(1, server) == {"TOKENS": 5, "RESERVED": 2, "INTERNAL": 1, "FREE": 8}
    assert counts_after(2, server) == {"TOKENS": 7, "INTERNAL": 1, "FREE": 8}


def test_an_unfilled_slot_is_internal_only_if_it_is_never_filled() -> None:
    server = Server([Request(1, 7)], Blocks(8, 8))
    assert counts_after(1, server) == {"TOKENS": 2, "RESERVED": 6}


def test_a_rest_smaller_than_a_block_stays_free() -> None:
    server = Server([Request(7, 1)], Blocks(11, 8))
    assert counts_after(1, server) == {"TOKENS": 8, "FREE": 3}


def test_the_youngest_gives_its_blocks_back_and_comes_again() -> None:
    # Three blocks of 2. Both requests start with one block each; at step 2 the first takes
    # the third block and the second finds none.
    server = Server([Request(1, 4), Request(1, 2)], Blocks(6, 2))
    server.step()
    assert (server.running, server.num_tokens) == ([0, 1], [2, 2])
    server.step()
    assert (server.running, list(server.waiting), server.num_preemptions) == ([0], [1], 1)
    assert kinds_of(server.counts()) == {"TOKENS": 3, "RESERVED": 1, "FREE": 2}
    assert server.num_tokens == [3, 2]  # its two tokens are kept as text
    assert server.num_recomputed == 2
    server.step()
    assert server.running == [0]  # 3 tokens need two blocks; one is free
    server.step()
    server.step()
    assert (server.running, server.num_tokens) == ([1], [5, 3])
    assert server.done


def test_who_had_to_go_is_not_overtaken() -> None:
    server = Server([Request(2, 2), Request(4, 4), Request(1, 1)], Blocks(8, 1))
    server.step()
    assert server.running == [0, 1]
    server.step()  # 4 + 6 tokens do not fit into 8; request 2 would fit, but comes later
    assert (server.running, list(server.waiting)) == ([0], [1, 2])
    assert kinds_of(server.counts()) == {"TOKENS": 4, "FREE": 4}


def test_before_the_first_step_all_is_free() -> None:
    server = Server(short_requests(), Contiguous(POOL, "oracle", max_len=300))
    assert kinds_of(server.counts()) == {"FREE": POOL}


def test_preemption_happens_at_the_size_of_the_notebook() -> None:
    simulation = simulate(short_requests(), Blocks(POOL, 16))
    assert simulation.num_preemptions > 10
    assert simulation.peak_running > simulation.mean_running > 1


# Blocks of 1 to 256 -----------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 2, 4, 8, 16, 32, 64, 128, 256])
def test_unfilled_slots_follow_the_formula(size) -> None:
    num_slots = 17_089
    run = simulate(long_tailed_requests(400, seed=0), Blocks(num_slots, size))
    unfilled = run.shares[Kind.RESERVED] + run.shares[Kind.INTERNAL]
    formula = run.mean_running * (size - 1) / 2 / num_slots  # half of a last block is empty
    assert unfilled == pytest.approx(formula, rel=0.05, abs=1e-12)


# Requests ---------------------------------------------------------------------------------------


def test_lengths_are_long_tailed_with_the_means_of_the_paper() -> None:
    requests = long_tailed_requests(20_000, seed=0)
    outputs = np.array([request.output_len for request in requests])
    assert np.mean([request.prompt_len for request in requests]) == pytest.approx(161, rel=0.03)
    assert outputs.mean() == pytest.approx(338, rel=0.06)  # long texts are cut
    assert np.median(outputs) < 0.7 * outputs.mean()
    assert min(request.prompt_len for request in requests) >= 1
    assert max(request.final_len for request in requests) == 2048


def test_seed_decides_the_requests() -> None:
    assert long_tailed_requests(9, seed=1) == long_tailed_requests(9, seed=1)
    assert long_tailed_requests(9, seed=1) != long_tailed_requests(9, seed=2)


def test_shortest_allowed_text_still_has_an_output() -> None:
    assert set(long_tailed_requests(5, seed=0, max_len=2)) == {Request(1, 1)}


# The result -------------------------------------------------------------------------------------


def test_means_are_over_the_steps_with_a_queue() -> None:
    # One request of 4 slots at a time: steps 1-3 with a queue, steps 4-6 without.
    run = simulate([Request(1, 3), Request(1, 3)], Contiguous(4, "oracle"))
    assert run.num_steps == 6
    assert run.crowded.tolist() == [True] * 3 + [False] * 3
    assert run.mean_running == 1.0
    assert run.shares[Kind.TOKENS] == pytest.approx((2 + 3 + 4) / 3 / 4)
    assert sum(run.shares.values()) == pytest.approx(1)


def test_no_queue_no_means() -> None:
    run = simulate([Request(1, 1)], Blocks(8, 4))
    with pytest.raises(ValueError, match="number of steps at which a request waits is 0"):
        _ = run.shares


def test_map_of_a_late_step_is_that_of_the_last() -> None:
    drawn = memory_map_at(99, [Request(1, 1)], Blocks(4, 2))
    assert drawn.owner.tolist() == [0, 0, NOBODY, NOBODY]


# Bytes ------------------------------------------------------------------------------------------


def test_bytes_of_a_block_of_opt_13b() -> None:
    assert bytes_per_block(40, 1, 40, 128, 2) == 819_200
    assert bytes_per_block(40, 16, 40, 128, 2) == 16 * 819_200
    assert bytes_per_block(2, 3, 5, 7, 11) == 2 * 2 * 3 * 5 * 7 * 11


def test_blocks_that_fit_are_rounded_down() -> None:
    assert num_available_blocks(1000, 0.5, 100, 100) == 4
    assert num_available_blocks(1000, 0.5, 101, 100) == 3
    assert num_available_blocks(1000, 1.0, 0, 1000) == 1


# Errors -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Request(0, 1), "prompt_len is 0; it must be at least 1"),
        (lambda: Request(1, -1), "output_len is -1; it must be at least 1"),
        (lambda: long_tailed_requests(0, 0), "num_requests is 0; it must be at least 1"),
        (lambda: long_tailed_requests(1, 0, 1), "max_len is 1; it must be at least 2"),
        (lambda: Contiguous(0, "max"), "num_slots is 0; it must be at least 1"),
        (lambda: Contiguous(9, "best"), "policy is 'best'; it must be one of"),
        (lambda: Contiguous(9, "max", max_len=0), "max_len is 0; it must be at least 2"),
        (lambda: Blocks(9, 0), "block_size is 0; it must be at least 1"),
        (lambda: Blocks(3, 4), "num_slots is 3; it must be at least 4, a block"),
        (lambda: Server([], Blocks(9, 1)), "requests is empty; it must be at least one"),
        (
            lambda: Server([Request(1, 1), Request(4, 5)], Blocks(11, 4)),
            "the length of request 1 .prompt and output. is 9; it must be at most 8",
        ),
        (
            lambda: Server([Request(60, 5)], Contiguous(99, "oracle", max_len=64)),
            "the length of request 0 .prompt and output. is 65; it must be at most 64",
        ),
        (
            lambda: Server([Request(1, 1)], Contiguous(60, "max", max_len=64)),
            "number of slots for request 0 is 64; it must be at most 60, the pool",
        ),
        (lambda: memory_map_at(0, [Request(1, 1)], Blocks(4, 2)), "step is 0; it must be"),
        (lambda: bytes_per_block(1, 16, 0, 128, 2), "num_kv_heads is 0; it must be at least 1"),
        (lambda: num_available_blocks(0, 0.9, 0, 1), "total_bytes is 0"),
        (lambda: num_available_blocks(9, 1.1, 0, 1), "utilization is 1.1; it must be above 0"),
        (lambda: num_available_blocks(9, 0.0, 0, 1), "utilization is 0.0; it must be above 0"),
        (lambda: num_available_blocks(9, 0.9, -1, 1), "bytes_in_use is -1"),
        (lambda: num_available_blocks(9, 0.9, 0, 0), "bytes_per_block is 0"),
        (
            lambda: num_available_blocks(100, 0.9, 80, 11),
            "the memory left for blocks is 10 bytes; it must be at least 11, one block",
        ),
        (
            lambda: num_available_blocks(100, 0.9, 200, 11),
            "the memory left for blocks is -110 bytes; it must be at least 11",
        ),
    ],
)
def test_error_says_what_was_wrong_and_what_is_allowed(call, message) -> None:
    with pytest.raises(ValueError, match=message):
        call()
