"""The watch: which rank is named, and that nobody is blamed without reason.

The ranks are threads of this process, and their store is a dictionary.
"""

import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from distributed_functions import agree_on

from pa_tutorial.distributed import watch as watch_module
from pa_tutorial.distributed.group import hash_of
from pa_tutorial.distributed.watch import VERDICT, Disagreement, Watch, is_lost_contact

TICK = 0.01
LIMIT = 0.5
SILENCE = 0.5
NEVER = 100.0
LOST_CONTACT = "[/gloo/transport/tcp/pair.cc:544] Connection closed by peer"


class Job:
    """Watches of several ranks, their counts of collectives, and what ended each."""

    def __init__(self, num_ranks: int, store: object, limit: float, silence: float) -> None:
        self.begun, self.verdicts = [0] * num_ranks, {}
        self.stopped = threading.Event()
        self.watches: list[Watch] = [None] * num_ranks

        def begun(rank: int) -> int:
            return self.begun[rank]

        def start(rank: int) -> None:
            self.watches[rank] = Watch(
                store, rank, num_ranks, lambda: begun(rank), limit, silence, self.end
            )

        threads = [threading.Thread(target=start, args=(rank,)) for rank in range(num_ranks)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def end(self, rank: int, verdict: str) -> None:
        assert rank not in self.verdicts, "a rank ends twice"
        self.verdicts[rank] = verdict

    def die(self, rank: int) -> None:
        """Its thread gives no more signs, and tells nobody."""
        self.watches[rank]._give_sign = self.watches[rank]._read_signs = lambda: None
        self.watches[rank]._judge = lambda: None

    def wait(self, *ranks: int, seconds: float = 10.0) -> list[str]:
        """Until these ranks have ended; what they say."""
        deadline = time.monotonic() + seconds
        while not set(ranks) <= set(self.verdicts):
            assert time.monotonic() < deadline, f"only {self.verdicts}"
            time.sleep(TICK)
        return [self.verdicts[rank] for rank in ranks]

    def wait_for_one(self, *ranks: int) -> str:
        """The verdict of all of them; it must be one."""
        (verdict,) = set(self.wait(*ranks))
        return verdict


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Job]]:
    monkeypatch.setattr(watch_module, "TICK", TICK)
    monkeypatch.setattr(watch_module, "GRACE", 20 * TICK)
    jobs: list[Job] = []

    def start(
        num_ranks: int = 3, limit: float = NEVER, silence: float = NEVER, store: object = None
    ) -> Job:
        jobs.append(Job(num_ranks, store or dist.HashStore(), limit, silence))
        return jobs[-1]

    yield start
    for started in jobs:
        for watch in started.watches:
            watch._leaving.set()
            watch._thread.join()


# Verdicts.


def test_a_rank_that_fails_is_named_with_its_error_on_all_ranks(job: Callable) -> None:
    started = job()
    started.watches[1].doing = "step 5"
    started.watches[1].fail(ZeroDivisionError("division by zero"))
    verdict = started.wait_for_one(0, 1, 2)
    assert verdict == "rank 1 failed in step 5: ZeroDivisionError: division by zero"


def test_a_disagreement_is_said_as_it_is(job: Callable) -> None:
    started = job()
    started.watches[2].fail(Disagreement("step 1: rank 2 has other block_tables"))
    assert started.wait_for_one(0, 1, 2) == "step 1: rank 2 has other block_tables"


def test_a_rank_without_signs_of_life_is_named(job: Callable) -> None:
    started = job(silence=SILENCE)
    started.die(1)
    assert "rank 1 gave no sign of life for 0.5 s" in started.wait_for_one(0, 2)


def test_a_rank_that_hangs_is_named_with_what_it_does_and_where(job: Callable) -> None:
    started = job(limit=LIMIT)
    started.watches[1].doing = "step 9"
    started.begun[:] = [4, 3, 4]
    verdict = started.wait_for_one(0, 1, 2)
    assert verdict.startswith("rank 1 kept the others waiting for 0.5 s (rank 1 is in step 9, at ")
    assert ".py:" in verdict, "the place: function, file and line"


def test_all_ranks_that_are_behind_are_named(job: Callable) -> None:
    started = job(num_ranks=4, limit=LIMIT)
    started.begun[:] = [3, 4, 3, 3]
    verdict = started.wait_for_one(0, 1, 2, 3)
    assert verdict.startswith("rank 0 and rank 2 and rank 3 kept the others waiting")
    assert all(f"rank {rank} is in" in verdict for rank in (0, 2, 3))


def test_the_rank_that_is_furthest_behind_is_named_not_the_one_that_waits_for_it(
    job: Callable,
) -> None:
    started = job(limit=LIMIT)
    started.begun[:] = [5, 4, 2]
    assert started.wait_for_one(0, 1, 2).startswith("rank 2 kept the others waiting")


def test_a_rank_that_was_asked_to_end_waits_for_the_verdict_of_others(job: Callable) -> None:
    """torchrun asks all to end when one has died: the reason is that one."""
    started = job(silence=SILENCE)
    started.die(1)
    started.watches[0].asked_to_end = True
    assert "rank 1 gave no sign of life" in started.wait_for_one(0, 2)


def test_a_rank_that_was_asked_to_end_ends_if_nothing_is_wrong(job: Callable) -> None:
    started = job(silence=SILENCE)
    started.watches[0].asked_to_end = True
    verdict = started.wait_for_one(0, 1, 2)
    assert verdict == "rank 0: it was asked to end, and no rank is known to be dead"


def test_a_rank_that_lost_contact_waits_for_the_verdict_of_others(job: Callable) -> None:
    """Its connection broke because another rank died: that one is the cause."""
    started = job(silence=SILENCE)
    started.die(2)
    started.watches[0].fail(RuntimeError(LOST_CONTACT))
    assert "rank 2 gave no sign of life" in started.wait_for_one(0, 1)


def test_a_rank_that_lost_contact_for_no_known_reason_ends_the_job(job: Callable) -> None:
    started = job(silence=SILENCE)
    started.watches[1].fail(RuntimeError(LOST_CONTACT))
    verdict = started.wait_for_one(0, 1, 2)
    assert verdict == "rank 1: it lost contact to another rank, and no rank is known to be dead"


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (RuntimeError(LOST_CONTACT), True),
        (dist.DistBackendError("NCCL error: remote process exited"), True),
        (dist.DistNetworkError("the store has gone"), True),
        (RuntimeError("shape mismatch"), False),
        (Disagreement("step 1"), False),
        (KeyboardInterrupt(), False),
    ],
)
def test_only_the_network_is_lost_contact(error: BaseException, expected: bool) -> None:
    assert is_lost_contact(error) == expected


class LostStore:
    """A store that answers until it is lost."""

    def __init__(self) -> None:
        self._store, self.is_lost = dist.HashStore(), False

    def __getattr__(self, name: str) -> object:
        if self.is_lost:
            raise dist.DistNetworkError("connection refused")
        return getattr(self._store, name)


def test_a_lost_store_ends_every_rank(job: Callable) -> None:
    store = LostStore()
    started = job(store=store)
    store.is_lost = True
    for verdict in started.wait(0, 1, 2):
        assert verdict.startswith("the store of the job is lost, and the process that kept it")


def test_the_first_verdict_is_that_of_all_ranks(job: Callable) -> None:
    """Two fail at once: the second must not be heard by some, the first by others."""
    started = job(num_ranks=4)
    failing = [
        threading.Thread(target=started.watches[rank].fail, args=(ValueError(f"of {rank}"),))
        for rank in (1, 3)
    ]
    for thread in failing:
        thread.start()
    verdict = started.wait_for_one(0, 1, 2, 3)
    assert verdict in {f"rank {r} failed in the start: ValueError: of {r}" for r in (1, 3)}
    for thread in failing:
        thread.join()


def test_a_second_verdict_changes_nothing() -> None:
    store = dist.HashStore()
    watch = SimpleNamespace(_store=store)
    assert Watch._reach(watch, "the first") == "the first"
    assert Watch._reach(watch, "the second") == "the first"
    assert store.get(VERDICT) == b"the first"


# False alarms.


def nobody_is_blamed(started: Job, seconds: float) -> None:
    time.sleep(seconds)
    assert started.verdicts == {}
    assert all(watch._thread.is_alive() for watch in started.watches)


def test_nobody_is_blamed_while_all_are_idle(job: Callable) -> None:
    started = job(limit=LIMIT, silence=2 * SILENCE)
    started.begun[:] = [7, 7, 7]
    nobody_is_blamed(started, 3 * LIMIT)


def test_nobody_is_blamed_while_all_go_on(job: Callable) -> None:
    """One rank is always ahead, for longer than the limit, and every wait is short."""
    started = job(limit=LIMIT)
    for number in range(12):
        started.begun[:] = [number + 1, number, number]
        time.sleep(LIMIT / 4)
    assert started.verdicts == {}


def test_the_limit_counts_from_what_any_rank_began_last(job: Callable) -> None:
    """While the last rank still begins collectives, it does not wait for the others."""
    started = job(limit=LIMIT)
    for number in range(8):
        started.begun[2] = number
        time.sleep(LIMIT / 4)
        assert started.verdicts == {}
    assert started.wait_for_one(0, 1, 2).startswith("rank 0 and rank 1 kept the others waiting")


def test_a_rank_that_is_slow_but_within_the_limit_is_not_blamed(job: Callable) -> None:
    started = job(limit=LIMIT)
    for _ in range(4):
        started.begun[:2] = [number + 1 for number in started.begun[:2]]
        time.sleep(LIMIT / 2)  # rank 2 computes
        started.begun[2] += 1
        time.sleep(TICK)
    assert started.verdicts == {}


def test_a_rank_that_rests_may_let_the_others_wait(job: Callable) -> None:
    """And its limit begins when the rest ends, not when it last came."""
    started = job(limit=LIMIT)
    resting = threading.Event()
    resting.set()
    started.watches[0].is_resting = resting.is_set
    started.begun[:] = [3, 4, 4]
    nobody_is_blamed(started, 3 * LIMIT)
    resting.clear()
    ended = time.monotonic()
    assert started.wait_for_one(0, 1, 2).startswith("rank 0 kept the others waiting")
    assert time.monotonic() - ended > LIMIT / 2


def test_a_rank_that_never_starts_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch_module, "START", 0.3)
    with pytest.raises(RuntimeError, match=r"^rank 1 and rank 2 did not start in 0.3 s$"):
        Watch(dist.HashStore(), 0, 3, lambda: 0, LIMIT, SILENCE)


def test_a_rank_that_left_is_not_blamed_for_its_silence(job: Callable) -> None:
    started = job(silence=2 * SILENCE)
    started.watches[1].leave()
    time.sleep(3 * SILENCE)
    assert started.verdicts == {}
    started.watches[0].leave()
    started.watches[2].leave()
    assert started.verdicts == {}


def test_a_rank_that_left_is_blamed_by_those_who_wait_for_it(job: Callable) -> None:
    """Its function returned too early: silent it may be, absent not."""
    started = job(limit=LIMIT)
    started.watches[1].leave()
    started.begun[:] = [2, 1, 2]
    assert started.wait_for_one(0, 2).startswith("rank 1 kept the others waiting")


def test_a_store_that_ends_while_all_leave_is_no_verdict(job: Callable) -> None:
    """Without torchrun it lives in rank 0, which may be the first to leave."""
    store = LostStore()
    started = job(store=store)
    started.watches[0].leave()
    store.is_lost = True
    time.sleep(3 * TICK)  # the others find it lost before they leave
    started.watches[1].leave()
    started.watches[2].leave()
    assert started.verdicts == {}


def test_ranks_that_were_all_stopped_are_not_blamed(
    job: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-Z and `fg`, or a machine that swaps: the clock went on, the signs did not.

    The threads do not look by themselves here: this one looks for rank 0.
    """
    monkeypatch.setattr(watch_module, "TICK", NEVER)
    started = job(silence=5.0, limit=5.0)
    time.sleep(5 * TICK)
    started.begun[:] = [1, 1, 0]
    watch = started.watches[0]
    for other in started.watches:
        other._give_sign()
    watch._read_signs()
    now = time.monotonic
    monkeypatch.setattr(
        watch_module, "time", SimpleNamespace(monotonic=lambda: now() + 60, sleep=time.sleep)
    )
    watch._read_signs()
    assert watch._judge() is None


# What the ranks agree on.


def one_bit_off(tensor: torch.Tensor) -> torch.Tensor:
    other = tensor.clone()
    other.view(torch.uint8)[-1] ^= 1
    return other


NUMBERS = torch.arange(6, dtype=torch.float32)
MANY = torch.arange(5000)
DIFFERENT = {
    "value": (1, 2),
    "type_of_a_number": (1, 1.0),
    "true_and_one": (1, True),
    "text_and_number": ("1", 1),
    "bytes_and_number": (b"1", 1),
    "none": (None, 0),
    "entry_of_a_list": ([1, 2, 3], [1, 2, 4]),
    "order_of_a_list": ([1, 2, 3], [1, 3, 2]),
    "length_of_a_list": ([1, 2], [1, 2, 2]),
    "nested_list": ([[1], [2]], [[1, 2]]),
    "list_and_tuple": ([1, 2], (1, 2)),
    "pair_reversed": ([(1, 2)], [(2, 1)]),
    "one_bit": (NUMBERS, one_bit_off(NUMBERS)),
    "one_of_many": (MANY, MANY.clone().index_fill(0, torch.tensor([2500]), 0)),
    "one_of_many_in_a_list": ([MANY], [MANY.clone().index_fill(0, torch.tensor([2500]), 0)]),
    "order": (NUMBERS, NUMBERS.flip(0)),
    "dtype": (NUMBERS, NUMBERS.view(torch.int32)),
    "shape": (NUMBERS, NUMBERS.view(2, 3)),
    "transposed_shape": (NUMBERS.view(3, 2), NUMBERS.view(2, 3)),
    "shape_of_nothing": (torch.empty(0, 3), torch.empty(3, 0)),
    "nothing_and_one": (torch.empty(0), torch.zeros(1)),
    "sign_of_zero": (torch.tensor([0.0]), torch.tensor([-0.0])),
    "nan": (torch.tensor([torch.nan]), torch.tensor([0.0])),
    "number_and_tensor": (1, torch.tensor(1)),
}
EQUAL = {
    "nan": (torch.tensor([torch.nan]), torch.tensor([torch.nan])),
    "transposed_view": (NUMBERS.view(2, 3).mT, NUMBERS.view(2, 3).mT.contiguous()),
    "every_second": (MANY[::2], MANY[::2].clone()),
    "bfloat16": (NUMBERS.bfloat16(), NUMBERS.bfloat16()),
    "bool": (NUMBERS > 2, NUMBERS > 2),
    "scalar": (torch.tensor(1.5), torch.tensor(1.5)),
    "empty": (torch.empty(0, 3), torch.empty(0, 3)),
    "parameter": (torch.nn.Parameter(NUMBERS), NUMBERS),
    "list": ([(1, 2), [3]], [(1, 2), [3]]),
}


@pytest.mark.parametrize(("one", "other"), DIFFERENT.values(), ids=DIFFERENT)
def test_every_kind_of_difference_changes_the_hash(one: object, other: object) -> None:
    assert hash_of(one) != hash_of(other)


@pytest.mark.parametrize(("one", "other"), EQUAL.values(), ids=EQUAL)
def test_equal_facts_have_equal_hashes(one: object, other: object) -> None:
    assert hash_of(one) == hash_of(other)
    assert -(2**63) <= hash_of(one) < 2**63


FACTS = {"input_ids": torch.tensor([1, 2]), "num_decodes": 2, "query_lens": [1, 1]}


def test_ranks_with_the_same_facts_agree(ranks_of: Callable) -> None:
    assert ranks_of(2).run(agree_on, [FACTS, FACTS]) == ["", ""]
    assert ranks_of(2).run(agree_on, [{}, {}]) == ["", ""]


@pytest.mark.parametrize("name", FACTS)
def test_a_rank_that_differs_is_named_with_what_differs(name: str, ranks_of: Callable) -> None:
    said = ranks_of(2).run(agree_on, [FACTS, FACTS | {name: "other"}])
    assert said == [f"step 7: rank 1 has other {name} than rank 0; nothing was computed"] * 2


def test_all_that_differs_is_named(ranks_of: Callable) -> None:
    other_facts = FACTS | {"num_decodes": 1}, FACTS, FACTS | {"num_decodes": 3, "query_lens": [2]}
    expected = (
        "step 7: rank 1 has other num_decodes than rank 0; "
        "rank 3 has other num_decodes and query_lens than rank 0; nothing was computed"
    )
    assert ranks_of(4).run(agree_on, [FACTS, *other_facts]) == [expected] * 4
