"""Decode time on paper: against matrices, tokens and hops that are counted one by one."""

import pytest

from pa_tutorial.distributed.paper import (
    H100,
    LLAMA_3_1_70B,
    NVLINK_4,
    decode_time,
    matrix_numbers,
)
from pa_tutorial.engine.model import LlamaConfig

# 8 query heads, 4 KV heads; every size differs from every other, so that none can stand in.
SMALL = LlamaConfig(3, 8, 4, 6, 24, 56, 80, max_len=16)


def test_the_named_model_has_the_published_number_of_parameters() -> None:
    embedding_and_norms = (128_256 + 2 * 80 + 1) * 8192
    assert matrix_numbers(LLAMA_3_1_70B, 1) + embedding_and_norms == 70_553_706_496


@pytest.mark.parametrize("heads", [0, 3, 16])
def test_unequal_shares_of_heads_are_refused_with_those_that_are_equal(heads: int) -> None:
    with pytest.raises(ValueError, match=rf"heads is {heads}; .*one of \[1, 2, 4, 8\]"):
        decode_time(SMALL, H100, NVLINK_4, 1, 1, heads)
