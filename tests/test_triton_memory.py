"""Which elements the Triton kernels read and write: a mask too wide gives no wrong result, until
the cache is the last thing in memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from unittest import mock

import numpy as np
import pytest
import torch
from torch import Tensor
from triton_steps import draw, taken_out, token_places

from pa_tutorial.kernels.changed import changed
from pa_tutorial.kernels.triton_launch import TritonLaunch, prepare_triton, why_absent

if why_absent() is None:
    from triton.runtime.interpreter import InterpreterBuilder

    from pa_tutorial.kernels import triton_decode

pytestmark = pytest.mark.triton


def addresses(tensor: Tensor) -> Tensor:
    """Of every element, in the shape of the tensor."""
    offsets = sum(
        torch.arange(n).view([-1 if d == dim else 1 for d in range(tensor.dim())]) * stride
        for dim, (n, stride) in enumerate(zip(tensor.shape, tensor.stride(), strict=True))
    )
    return tensor.data_ptr() + offsets * tensor.element_size()


def readable(given: dict[str, object]) -> dict[str, set[int]]:
    """Name -> the addresses that a step has to read: of the caches, those of its tokens."""
    whole = "q", "seq_lens", "k_new", "v_new"
    used = {name: addresses(given[name]) for name in whole if name in given}
    block_size = given["k_cache"].shape[2]
    places = [token_places(given, sequence) for sequence in range(len(given["q"]))]
    for name in ("k_cache", "v_cache"):
        of_cache = addresses(given[name])
        used[name] = torch.cat([of_cache[blocks, :, offsets] for blocks, offsets in places])
    entries = [-(-int(length) // block_size) for length in given["seq_lens"]]
    rows = zip(addresses(given["block_tables"]), entries, strict=True)
    used["block_tables"] = torch.cat([row[:n] for row, n in rows])
    return {name: set(numbers.flatten().tolist()) for name, numbers in used.items()}


@contextmanager
def recorded() -> Iterator[tuple[Counter[int], Counter[int]]]:
    """Counts the addresses that kernels read and write in the interpreter, masked ones not."""
    read, written = Counter(), Counter()

    def counting(original: Callable, counter: Counter[int], mask_at: int) -> Callable:
        def access(builder: InterpreterBuilder, pointers: object, *others: object) -> object:
            mask = np.broadcast_to(others[mask_at].data, pointers.data.shape)
            counter.update(pointers.data[mask].tolist())
            return original(builder, pointers, *others)

        return access

    load, store = InterpreterBuilder.create_masked_load, InterpreterBuilder.create_masked_store
    with (
        mock.patch.object(InterpreterBuilder, "create_masked_load", counting(load, read, 0)),
        mock.patch.object(InterpreterBuilder, "create_masked_store", counting(store, written, 1)),
    ):
        yield read, written


def accesses(given: dict[str, object]) -> tuple[TritonLaunch, Counter[int], Counter[int]]:
    """A step in partitions of 7 tokens: what it read and what it wrote."""
    ready = prepare_triton(**given, partition_size=7, tile_size=16)
    with recorded() as (read, written):
        ready.run()
    return ready, read, written


STEPS = {
    "padded": draw(num_heads=6, head_size=24, alibi=True),
    "gaps": draw(seq_lens=(15, 1, 7), num_heads=3, num_kv_heads=1, head_size=40, gaps=True),
    "float16": draw(seq_lens=(8, 30), block_size=5, head_size=16, dtype=torch.float16),
    "beside": taken_out(draw(seq_lens=(1, 15, 9), num_heads=6, head_size=24, gaps=True)),
}
by_step = pytest.mark.parametrize("given", STEPS.values(), ids=STEPS)


@by_step
def test_what_is_read_is_what_a_step_has_to_read(given: dict[str, object]) -> None:
    """All tokens and nothing else: no free slot, no gap, nothing behind the end of a tensor. The
    slopes and what the first kernel hands to the second are tensors of the launch."""
    ready, read, written = accesses(given)
    expected = readable(given)
    own = set(addresses(ready.partitions.arguments["alibi_slopes_ptr"]).tolist())
    assert read.keys() - own - written.keys() == set().union(*expected.values())
    assert own <= read.keys()


@by_step
def test_every_token_is_read_once(given: dict[str, object]) -> None:
    """By one program, for all query heads of its KV head: that is what saves memory traffic."""
    _, read, _ = accesses(given)
    of_tokens = readable(given)
    for name in ("k_cache", "v_cache"):
        assert {read[address] for address in of_tokens[name]} == {1}, name


@by_step
def test_what_is_written_is_the_output_and_what_is_merged(given: dict[str, object]) -> None:
    """Each once; nothing for a partition without a token."""
    ready, _, written = accesses(given)
    expected = set(addresses(ready.out).flatten().tolist())
    for tensor in (ready.max_logits, ready.exp_sums, ready.tmp_out):
        for row, length in zip(addresses(tensor), given["seq_lens"].tolist(), strict=True):
            expected |= set(row[:, : -(-length // 7)].flatten().tolist())
    assert written.keys() == expected
    assert set(written.values()) == {1}


@pytest.mark.parametrize(
    ("old", "new", "test"),
    [
        (
            "k_cache_ptr + kv_offset, mask=is_kv",
            "k_cache_ptr + kv_offset, mask=is_element[None, :]",
            test_what_is_read_is_what_a_step_has_to_read,
        ),
        (
            "range(first, last, TILE_SIZE)",
            "range(first // TILE_SIZE * TILE_SIZE, last, TILE_SIZE)",
            test_every_token_is_read_once,
        ),
        (
            "if first >= seq_len:",
            "if first > seq_len:",
            test_what_is_written_is_the_output_and_what_is_merged,
        ),
    ],
    ids=["keys_of_free_slots", "tiles_that_overlap", "an_empty_partition"],
)
def test_a_mask_too_wide_is_seen(
    old: str, new: str, test: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With sequences of 7 and 15 tokens: one partition ends where the sequence does."""
    kernel = changed(triton_decode.paged_decode_kernel, old, new)
    monkeypatch.setattr(triton_decode, "paged_decode_kernel", kernel)
    with pytest.raises(AssertionError):
        test(STEPS["gaps"])
