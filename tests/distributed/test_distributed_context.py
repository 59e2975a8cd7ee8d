"""Context-parallel decode: blocks dealt out over ranks, parts merged over the network."""

import pytest
import torch

from pa_tutorial.checks.problem import DecodeProblem
from pa_tutorial.distributed.context import deal_out
from pa_tutorial.paging.layouts import LAYOUTS, by_token
from tests.distributed_trials import TRIALS, run_on_ranks

HEAD_SIZE = 32
# In `make test`: five of the cases, and on four ranks only TinyLM, besides what is no case.
IN_MAKE_TEST = (
    *("bytes_of_a_merge", "nan_of_one_rank", "facts_of_other_shape"),
    *("serving_*", "*_on_2_ranks"),
    *("context/decode/one_token", "context/decode/gqa", "context/decode/gqa_alibi"),
    *("context/decode/tail*", "context/decode/shuffled_blocks"),
)


@pytest.mark.rest(keep=IN_MAKE_TEST)
@pytest.mark.parametrize("name", TRIALS)
def test_every_trial_finds_nothing_wrong(name: str) -> None:
    """The wrong examples of many devices are tried on them too: see tests/wrong_examples.py."""
    assert run_on_ranks(name) == ""


@pytest.mark.parametrize("num_ranks", [1, 2, 3, 7])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_blocks_are_dealt_out_one_by_one_and_a_shared_block_once(
    layout: str, num_ranks: int
) -> None:
    """In runs, ranks would have nothing to do until a sequence is long."""
    sizes = {"seq_lens": (33, 40, 37), "num_kv_heads": 2, "head_size": HEAD_SIZE, "block_size": 8}
    step = DecodeProblem("name", "isolates", "meaning", shared_blocks=2, **sizes).paged(layout)
    v_whole = by_token(step.k_cache, step.v_cache)[1]
    for rank in range(num_ranks):
        share = deal_out(step, rank, num_ranks)
        columns = range(rank, 5, num_ranks)
        assert share.block_indices.tolist()[: len(columns)] == [*columns]
        assert share.block_tables.shape == (3, -(-step.block_tables.shape[1] // num_ranks))
        v = by_token(share.k_cache, share.v_cache)[1]
        own = v[share.block_tables[:, : len(columns)].long()]
        torch.testing.assert_close(own, v_whole[step.block_tables[:, columns]], equal_nan=True)
        shared = len(range(rank, 2, num_ranks))
        assert len(v) == 1 + 3 * len(columns) - 2 * shared, "the null block, and each block once"
