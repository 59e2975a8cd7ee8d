"""Work in several processes: what dies, hangs or fails does no harm to the rest."""

import multiprocessing
import time

from process_pool_work import work

from pa_tutorial.bench.process_pool import run_in_pool


def test_every_item_has_its_result() -> None:
    done = run_in_pool(work, [1, 2, 3, 4, 5], workers=2, seconds=60)
    assert done.results == {0: 2, 1: 4, 2: 6, 3: 8, 4: 10}
    assert not done.failed
    assert not done.left_out


def test_what_fails_or_dies_is_named_and_the_rest_is_done() -> None:
    done = run_in_pool(work, [1, "raise", 2, "die", 3], workers=1, seconds=60)
    assert done.results == {0: 2, 2: 4, 4: 6}
    assert done.failed == {
        1: "ValueError: a first line",
        3: "its process ended with exit code 7",
    }


def test_an_item_that_hangs_is_left_out_with_those_behind_it() -> None:
    before = multiprocessing.active_children()  # of other tests
    start = time.monotonic()
    done = run_in_pool(work, [1, 2, "hang", 3, 4, 5], workers=2, seconds=4)
    assert time.monotonic() - start < 10
    assert done.results == {0: 2, 1: 4, 3: 6, 5: 10}
    assert done.left_out == [2, 4]
    assert set(multiprocessing.active_children()) <= set(before)


def test_more_workers_than_items() -> None:
    assert run_in_pool(work, [1], workers=4, seconds=60).results == {0: 2}
    assert run_in_pool(work, [], workers=4, seconds=60).results == {}
