"""Decode time on paper: against matrices, tokens and hops that are counted one by one."""

import pytest

from pa_tutorial.distributed.paper import LLAMA_3_1_70B, Device, Link, decode_time, matrix_numbers
from pa_tutorial.engine.model import LlamaConfig

# 8 query heads, 4 KV heads; every size differs from every other, so that none can stand in.
SMALL = LlamaConfig(3, 8, 4, 6, 24, 56, 80, max_len=16)
ODD_DEVICE, ODD_LINK = Device(bandwidth=7.0, flops=11.0), Link(bandwidth=13.0, latency=0.25)


def test_the_named_model_has_the_published_number_of_parameters() -> None:
    embedding_and_norms = (128_256 + 2 * 80 + 1) * 8192
    assert matrix_numbers(LLAMA_3_1_70B, 1) + embedding_and_norms == 70_553_706_496


@pytest.mark.parametrize(("heads", "contexts"), [(1, 1), (2, 3), (8, 1), (1, 4)])
def test_a_step_reads_computes_and_sends_what_is_enumerated(heads: int, contexts: int) -> None:
    batch, context = 5, 12
    num_heads, num_kv_heads = SMALL.num_heads // heads, max(1, SMALL.num_kv_heads // heads)
    matrices = SMALL.vocab_size // heads * SMALL.hidden_size
    read = flops = sent = hops = 0

    def all_reduce(numbers: float, itemsize: int, n: int) -> None:
        nonlocal sent, hops
        sent += 2 * (n - 1) * numbers * itemsize / n
        hops += 2 * (n - 1)

    for _layer in range(SMALL.num_layers):
        matrices += SMALL.head_size * SMALL.hidden_size * (2 * num_heads + 2 * num_kv_heads)
        matrices += 3 * SMALL.mlp_size // heads * SMALL.hidden_size
        read += 2 * SMALL.hidden_size * 2  # two norms
        for _token in range(0, batch * context, contexts):  # those of one of the ranks
            read += 2 * num_kv_heads * SMALL.head_size * 2
            flops += num_heads * 4 * SMALL.head_size  # q . k, and weight * v
        all_reduce(batch * num_heads, 4, contexts)  # the largest score of each head
        all_reduce(batch * num_heads * (1 + SMALL.head_size), 4, contexts)  # its sum, its output
        all_reduce(batch * SMALL.hidden_size, 2, heads)  # after the output projection
        all_reduce(batch * SMALL.hidden_size, 2, heads)  # after the MLP
    read += 2 * (matrices + SMALL.hidden_size + batch * SMALL.hidden_size)  # norm and embedding
    flops += 2 * batch * matrices
    sent += (heads - 1) * batch * (SMALL.vocab_size // heads) * 2  # others' shares of the scores
    hops += heads - 1
    times = decode_time(SMALL, ODD_DEVICE, ODD_LINK, batch, context, heads, contexts)
    assert times == pytest.approx((read / 7, flops / 11, sent / 13 + 0.25 * hops))
    assert times.total == pytest.approx(max(times.reading, times.computing) + times.sending)
