"""What the figures of notebook 14 say about threads and masks is so in the kernels."""

import pytest

from pa_tutorial.kernels.triton_launch import why_absent
from pa_tutorial.viz.kernel_runs import REFERENCE, run_v1
from pa_tutorial.viz.tiles import OF_KEYS, Blocked, owners_in_v1


def test_every_thread_has_its_share_of_a_tile() -> None:
    owners = [OF_KEYS.thread_of(row, column) for row in range(16) for column in range(128)]
    assert {owners.count(thread) for thread in range(128)} == {2 * 8}
    assert set(owners) == set(range(128))
    assert OF_KEYS.thread_of(0, 7) == 0
    assert OF_KEYS.thread_of(0, 8) == 1
    assert OF_KEYS.thread_of(1, 0) == 16
    assert OF_KEYS.thread_of(2, 0) == 32
    assert OF_KEYS.thread_of(8, 0) == 0, "the tile is larger: it begins again"


def test_a_layout_with_warps_side_by_side() -> None:
    layout = Blocked((2, 1), (4, 8), (1, 4))
    assert layout.thread_of(1, 0) == 0
    assert layout.thread_of(2, 0) == 8
    assert layout.thread_of(0, 9) == 32 + 1


def test_in_v1_two_threads_share_a_token_of_the_first_warp() -> None:
    owners = owners_in_v1(run_v1(REFERENCE))
    assert owners == [[f"{2 * token} {2 * token + 1}"] * 16 for token in range(8)]


@pytest.mark.triton
@pytest.mark.parametrize("capability", [(8, 0), (9, 0)])
def test_triton_chooses_the_layout_that_is_drawn(capability: tuple[int, int]) -> None:
    assert why_absent() is None
    from pa_tutorial.kernels.triton_compiled import compile_call
    from pa_tutorial.kernels.triton_launch import prepare_triton

    inputs = REFERENCE.paged("plain")
    tensors = inputs.q, inputs.k_cache, inputs.v_cache, inputs.block_tables, inputs.seq_lens
    call = prepare_triton(*tensors, inputs.scale, tile_size=16).partitions
    assert compile_call(call, capability).layout_of_tile(16, 128) == str(OF_KEYS)
