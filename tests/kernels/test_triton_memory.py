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

from pa_tutorial.kernels.triton.backend import why_absent
from tests.kernels.kernel_inputs import prepare_triton, step

if why_absent() is None:
    from triton.runtime.interpreter import InterpreterBuilder

pytestmark = pytest.mark.triton
WHOLE = "q", "seq_lens"


def addresses(tensor: Tensor) -> Tensor:
    """Of every element, in the shape of the tensor."""
    count = tensor.untyped_storage().nbytes() // tensor.element_size() - tensor.storage_offset()
    places = torch.arange(count).as_strided(tensor.shape, tensor.stride())
    return tensor.data_ptr() + places * tensor.element_size()


def readable(arguments: dict[str, object]) -> dict[str, set[int]]:
    """Name -> the addresses that a step has to read: of the caches, those of its tokens."""
    used = {name: [addresses(arguments[name])] for name in WHOLE}
    used |= {"k_cache": [], "v_cache": [], "block_tables": []}
    block_size = arguments["k_cache"].shape[2]
    for sequence, length in enumerate(arguments["seq_lens"].tolist()):
        tokens, row = torch.arange(length), arguments["block_tables"][sequence]
        blocks = row[tokens // block_size].long()
        for name in ("k_cache", "v_cache"):
            used[name].append(addresses(arguments[name])[blocks, :, tokens % block_size])
        used["block_tables"].append(addresses(row)[: -(-length // block_size)])
    return {name: set(torch.cat([x.flatten() for x in of]).tolist()) for name, of in used.items()}


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


STEPS = {
    "padded": step(num_heads=6, head_size=24, alibi=True),
    "gaps": step(seq_lens=(15, 1, 7), num_heads=3, num_kv_heads=1, head_size=40, gaps=True),
    "float16": step(seq_lens=(8, 30), block_size=5, strided_q=True, dtype=torch.float16),
}


@pytest.mark.parametrize("arguments", STEPS.values(), ids=STEPS)
def test_a_step_reads_and_writes_what_it_has_to(arguments: dict[str, object]) -> None:
    """Read: all tokens and nothing else, no free slot, no gap, nothing behind the end of a tensor;
    K and V once, by one program for all query heads of its KV head, which is what saves memory
    traffic. Written, once each: the output and what is merged; nothing for a partition without a
    token. The slopes and what the first kernel hands to the second are tensors of the launch."""
    prepared = prepare_triton(**arguments, partition_size=7, tile_size=16)
    with recorded() as (read, written):
        prepared.run()
    values = prepared.partitions.arguments
    expected = readable(arguments)
    own = set(addresses(values["alibi_slopes_ptr"]).tolist())
    assert own <= read.keys()
    assert read.keys() - own - written.keys() == set().union(*expected.values()), "what is read"
    for name in ("k_cache", "v_cache"):
        assert {read[address] for address in expected[name]} == {1}, f"{name} is read once"
    merged = set(addresses(prepared.out).flatten().tolist())
    for name in ("max_logits_ptr", "exp_sums_ptr", "tmp_out_ptr"):
        rows = zip(addresses(values[name]), arguments["seq_lens"].tolist(), strict=True)
        for row, length in rows:
            merged |= set(row[:, : -(-length // 7)].flatten().tolist())
    assert written.keys() == merged, "what is written"
    assert set(written.values()) == {1}
