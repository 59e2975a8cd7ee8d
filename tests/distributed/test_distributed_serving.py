"""The engine on ranks answers as on one device; ranks that differ or fail end the job."""

import os
from collections.abc import Callable

import psutil
import pytest
import torch
from distributed_serving import (
    NUM_REQUESTS,
    TIGHT,
    fail_at_work,
    one_device,
    pause,
    pid_of,
    requests,
    serve_all,
    serve_and_show,
    serve_different,
    serve_with_fault,
    threads_after_the_cpu_stage,
)

from pa_tutorial.distributed.heads import heads_of
from pa_tutorial.distributed.ranks import Ranks, RanksLost

MODELS = ("tiny", "llama", "qwen2", "alibi")


@pytest.mark.parametrize("caching", [True, False])
@pytest.mark.parametrize("name", MODELS)
def test_the_requests_could_tell_wrong_from_right(name, caching) -> None:
    served, gap, _ = one_device(name, prefix_caching=caching, **TIGHT)
    assert gap > 1e-4, "no tie that rounding, some 1e-7 in a float32 stage, could turn"
    assert [c.error for c in served.completions] == [None] * NUM_REQUESTS
    assert {step.error for step in served.statistics} == {None}
    last = served.statistics[-1]
    assert last.num_preemptions > 0
    assert (last.hit_rate > 0.1) == caching
    assert max(step.num_waiting for step in served.statistics) > 0
    assert any(step.num_prefill and step.num_decode for step in served.statistics)
    reasons = {reason for c in served.completions for reason in c.finish_reasons}
    assert reasons == {"stop", "length"}
    prompts, params, arrivals = requests(64)
    assert min(map(len, prompts)) < TIGHT["chunk_size"] < max(map(len, prompts))
    assert {p.num_samples for p in params} == {1, 3}
    assert len(set(arrivals)) > 4
    tokens = {token for c in served.completions for sample in c.token_ids for token in sample}
    assert len(tokens) > 15, "varied"


ON_RANKS = [
    (2, "tiny", True),
    (2, "tiny", False),
    (2, "llama", True),
    (2, "llama", False),
    (2, "qwen2", True),
    (2, "alibi", True),
    (4, "tiny", True),  # 2 KV heads: two ranks have the same one
    (4, "tiny", False),
    (4, "llama", True),
    (4, "qwen2", False),  # 1 KV head, which all have; 97 scores
]


@pytest.mark.parametrize(("num_ranks", "name", "caching"), ON_RANKS)
def test_tokens_and_statistics_are_those_of_one_device(ranks_of, num_ranks, name, caching) -> None:
    """16 requests; only rank 0 has a result. float64: the sums differ in the 16th digit."""
    options = {"prefix_caching": caching, **TIGHT}
    first, *other_ranks = ranks_of(num_ranks).run(serve_all, name, **options)
    served = one_device(name, **options)[0]
    assert first.completions == served.completions
    assert first.statistics == served.statistics
    assert other_ranks == [None] * (num_ranks - 1)


@pytest.mark.parametrize(("num_ranks", "name"), [(2, "llama"), (4, "tiny")])
def test_a_cache_is_the_head_slice_of_the_whole_block_by_block(ranks_of, num_ranks, name) -> None:
    """Under the same block numbers, after preemptions and copies, replicated heads too."""
    _, _, whole = one_device(name, prefix_caching=True, **TIGHT)
    caches = ranks_of(num_ranks).run(serve_and_show, name, prefix_caching=True, **TIGHT)
    num_heads = {"llama": 8, "tiny": 4}[name]
    num_kv_heads = {"llama": 4, "tiny": 2}[name]
    for rank, layers in enumerate(caches):
        own = heads_of(rank, num_ranks, num_heads, num_kv_heads)[1]
        assert len(layers) == len(whole)
        for layer, pairs in enumerate(zip(layers, whole, strict=True)):
            for mine, theirs in zip(*pairs, strict=True):
                expected = theirs[:, :, own.start : own.stop]
                assert mine.shape == expected.shape
                # Layer 0 has seen no sum over ranks; the decode of later ones is float32.
                tolerance = 1e-13 if layer == 0 else 1e-5
                torch.testing.assert_close(
                    mine, expected, rtol=tolerance, atol=tolerance, equal_nan=True
                )
                assert (~expected.isnan()).float().mean() > 0.5, "most blocks were written"


@pytest.mark.parametrize(
    ("stage", "num_requests", "block_size"),
    [
        ("cuda_v1", 1, 8),
        ("paged_gather", NUM_REQUESTS, 16),
        ("cpu", NUM_REQUESTS, 16),
    ],
)
def test_other_stages_decode_on_ranks_too(ranks_of, stage, num_requests, block_size) -> None:
    """In float32, with the trained model."""
    options = {"stage": stage, "num_requests": num_requests, "dtype": torch.float32}
    options |= {"block_size": block_size, "num_blocks": 40}
    served, gap, _ = one_device("tiny", **options)
    assert gap > 1e-3, "no tie that rounding, some 1e-5, could turn"
    first = ranks_of(2).run(serve_all, "tiny", **options)[0]
    assert first == served
    assert {c.error for c in first.completions} == {None}


@pytest.mark.parametrize(
    ("what", "different"),
    [
        ("norm", "before the model is cut: rank 1 has other weights"),
        ("bias", "before the model is cut: rank 1 has other weights"),
        ("sizes", "before the model is cut: rank 1 has other sizes and weights"),
        ("dtype", "before the model is cut: rank 1 has other weights"),
        ("stage", "before the first step: rank 1 has other stage and cache"),
        ("num_blocks", "before the first step: rank 1 has other cache"),
    ],
)
def test_ranks_that_differ_are_refused_before_anything_is_computed(
    ranks_of, what, different
) -> None:
    message = f"{different} than rank 0; nothing was computed"
    assert ranks_of(2).run(serve_different, what) == [message, message]


@pytest.mark.parametrize(
    ("kind", "rank", "message"),
    [
        ("raise", 1, "rank 1 failed in step 2: ArithmeticError: a layer broke"),
        ("hang", 0, "rank 0 did not come to step 2"),
    ],
)
def test_a_fault_in_a_step_names_the_rank(kind, rank, message) -> None:
    with Ranks(2, limit=4) as ranks:
        pids = ranks.run(pid_of)
        with pytest.raises(RanksLost) as lost:
            ranks.run(serve_with_fault, kind, rank)
        assert str(lost.value) == message
    assert not any(map(psutil.pid_exists, pids))


def test_work_that_fails_between_two_steps_ends_the_ranks_that_wait(ranks_of) -> None:
    with pytest.raises(RanksLost, match="rank 0 failed in step 1: ArithmeticError: the work"):
        ranks_of(2).run(fail_at_work)


def test_leaving_ranks_leaves_no_process() -> None:
    with Ranks(2) as ranks:
        pids = ranks.run(pid_of)
        assert len({os.getpid(), *pids}) == 3
        assert all(map(psutil.pid_exists, pids))
    assert not any(map(psutil.pid_exists, pids))


def test_a_pause_without_requests_may_be_longer_than_the_limit() -> None:
    with Ranks(2, limit=2) as ranks:
        assert ranks.run(pause, 3.0) == [True, None]


def test_ranks_keep_to_one_thread_each(ranks_of: Callable) -> None:
    """Where Numba starts its threads with OpenMP, torch has as many from then on."""
    assert ranks_of(2).run(threads_after_the_cpu_stage) == [(1, 1)] * 2
