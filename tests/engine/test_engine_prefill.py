"""Prefill by torch's fused kernel is the prefill that the walk has shown."""

import pytest
import torch

from pa_tutorial.attention.cached import cached_attention
from pa_tutorial.engine.runner import prefill_attention

SEQ_LEN = 130


@pytest.mark.parametrize("alibi", [False, True], ids=["plain", "alibi"])
@pytest.mark.parametrize("num_kv_heads", [4, 2])
@pytest.mark.parametrize("num_new_tokens", [1, 5, SEQ_LEN], ids=["last", "chunk", "whole"])
def test_a_chunk_sees_what_is_before_it_and_nothing_after(num_new_tokens, num_kv_heads, alibi):
    torch.manual_seed(0)
    q = torch.randn(num_new_tokens, 4, 16)
    k, v = torch.randn(2, SEQ_LEN, num_kv_heads, 16)
    slopes = torch.tensor([0.5, 0.25, 0.125, 0.0625]) if alibi else None
    out = prefill_attention(q, k, v, 0.3, slopes)
    torch.testing.assert_close(out, cached_attention(q, k, v, 0.3, slopes), rtol=1e-5, atol=1e-6)
