"""Weights times V in the type of V, as the original computes it. Ours does it in float32."""

import torch
from torch import Tensor

V_VEC_SIZE = 8  # tokens that one 16-byte vec of a 2-byte type holds


def narrow_dot(weights: Tensor, v: Tensor) -> Tensor:
    """The sum over tokens of weights * v, rounded where vLLM's kernel rounds.

    weights  [rows, tokens] float32
    v        [rows, tokens] float16 or bfloat16; a multiple of 8 tokens
    returns  [rows] float32

    The weights are rounded to the type of v, and so is each product. In a vec of float16, four
    pairs of products are added in float16 too; all other sums are float32.
    Source: vLLM, csrc/attention/dtype_float16.cuh and dtype_bfloat16.cuh, mul and sum;
    attention_generic.cuh, dot.
    """
    products = weights.to(v.dtype) * v
    vecs = products.unflatten(1, (-1, V_VEC_SIZE // 2, 2))  # [rows, vecs, pairs of a vec, 2]
    if v.dtype == torch.float16:
        pair = vecs[:, :, 0]
        for number in range(1, V_VEC_SIZE // 2):
            pair = pair + vecs[:, :, number]
        vecs = pair
    return vecs.float().flatten(1).sum(dim=1)
