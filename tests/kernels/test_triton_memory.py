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


def readable(arguments: dict[str, object]) -> dict[str, set[int]]:
    """Name -> the addresses that a step has to read: of the caches, those of its tokens."""
    whole = "q", "seq_lens", "k_new", "v_new"
    used = {name: addresses(arguments[name]) for name in whole if name in arguments}
    block_size = arguments["k_cache"].shape[2]
    places = [token_places(arguments, sequence) for sequence in range(len(arguments["q"]))]
    for name in ("k_cache", "v_cache"):
        of_cache = addresses(arguments[name])
        used[name] = torch.cat([of_cache[blocks, :, offsets] for blocks, offsets in places])
    entries = [-(-int(length) // block_size) for length in arguments["seq_lens"]]
    rows = zip(addresses(arguments["block_tables"]), entries, strict=True)
    used["block_tables"] = torch.cat([row[:n] for row, n in rows])
    return {name: set(numbers.flatten().tolist()) for name, numbers in used.items()}


@contextmanager
def recorded() -> Iterator[tuple[Counter[int], Counter[int]]]:
    """Counts the addresses that kernels read and write in the interpreter, masked ones not."""
    read, written = Counter(), Counter()

    def counting(original: Callable, counter: Counter[int], mask_at: int) -> Callable:
        def access(builder: InterpreterBuilder, pointers: object, *arguments: object) -> object:
            mask = np.broadcast_to(arguments[mask_at].data, pointers.data.shape)
            counter.update(pointers.data[mask].tolist())
            return original(builder, pointers, *arguments)

        return access

    load, store = InterpreterBuilder.create_masked_load, InterpreterBuilder.create_masked_store
    with (
        mock.patch.object(InterpreterBuilder, "create_masked_load", counting(load, read, 0)),
        mock.patch.object(InterpreterBuilder, "create_masked_store", counting(store, written, 1)),
    ):
        yield read, written


def accesses(arguments: dict[str, object]) -> tuple[TritonLaunch, Counter[int], Counter[int]]:
    """A step in partitions of 7 tokens: what it read and what it wrote."""
    prepared = prepare_triton(**arguments, partition_size=7, tile_size=16)
    with recorded() as (read, written):
        prepared.run()
    return prepared, read, written


STEPS = {
    "padded": draw(num_heads=6, head_size=24, alibi=True),
    "gaps": draw(seq_lens=(15, 1, 7), num_heads=3, num_kv_heads=1, head_size=40, gaps=True),
    "float16": draw(seq_lens=(8, 30), block_size=5, head_size=16, dtype=torch.float16),
    "beside": taken_out(draw(seq_lens=(1, 15, 9), num_heads=6, head_size=24, gaps=True)),
}
by_step = pytest.mark.parametrize("arguments", STEPS.values(), ids=STEPS)


@by_step
def test_what_is_read_is_what_a_step_has_to_read(arguments: dict[str, object]) -> None:
    """All tokens and nothing else: no free slot, no gap, nothing behind the end of a tensor. The
    slopes and what the first kernel hands to the second are tensors of the launch."""
    prepared, read, written = accesses(arguments)
    expected = readable(arguments)
    own = set(addresses(prepared.partitions.arguments["alibi_slopes_ptr"]).tolist())
    assert read.keys() - own - written.keys() == set().union(*expected.values())
    assert own <= read.keys()


@by_step
def test_every_token_is_read_once(arguments: dict[str, object]) -> None:
    """By one program, for all query heads of its KV head: that is what saves memory traffic."""
    _, read, _ = accesses(arguments)
    of_tokens = readable(arguments)
    for name in ("k_cache", "v_cache"):
        assert {read[address] for address in of_tokens[name]} == {1}, name


@by_step
def test_what_is_written_is_the_output_and_what_is_merged(arguments: dict[str, object]) -> None:
    """Each once; nothing for a partition without a token."""
    prepared, _, written = accesses(arguments)
    expected = set(addresses(prepared.out).flatten().tolist())
    for tensor in (prepared.max_logits, prepared.exp_sums, prepared.tmp_out):
        for row, length in zip(addresses(tensor), arguments["seq_lens"].tolist(), strict=True):
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
