"""Decode steps of any size for the tests of the Triton stage, and a float64 answer to each."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from pa_tutorial.walk import oracle

# The largest relative norm of a head's error. Of the narrow types it is their own rounding.
BOUNDS = {torch.float32: 2e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}


def draw(
    seq_lens: Sequence[int] = (20, 9),
    num_heads: int = 4,
    num_kv_heads: int = 2,
    head_size: int = 16,
    block_size: int = 8,
    dtype: torch.dtype = torch.float32,
    alibi: bool = False,
    gaps: bool = False,
    seed: int = 0,
) -> dict[str, object]:
    """Arguments of paged_attention_triton. What no token owns is NaN: block 0 too, which pads the
    tables, and with `gaps` what lies between sequences of q, between blocks and between heads."""
    random = torch.Generator().manual_seed(seed)
    gap = 1 if gaps else 0
    widths = [-(-length // block_size) for length in seq_lens]
    numbers = (torch.randperm(sum(widths), generator=random) + 1).int()  # all but block 0
    num_blocks = 1 + len(numbers)
    tables = torch.zeros(len(seq_lens), max(widths) + 1, dtype=torch.int32)
    caches = [
        torch.full((num_blocks, num_kv_heads + gap, block_size + gap, head_size), torch.nan)
        for _ in "kv"
    ]
    caches = [cache.to(dtype)[:, :num_kv_heads, :block_size] for cache in caches]
    for row, (own, length) in enumerate(zip(numbers.split(widths), seq_lens, strict=True)):
        tables[row, : len(own)] = own
        for token in range(length):
            place = own[token // block_size], slice(None), token % block_size
            for cache in caches:
                numbers_of_token = torch.randn(num_kv_heads, head_size, generator=random)
                cache[place] = numbers_of_token.to(dtype)
    q = torch.full((len(seq_lens), num_heads + gap, head_size), torch.nan, dtype=dtype)
    q[:, :num_heads] = torch.randn(len(seq_lens), num_heads, head_size, generator=random)
    return {
        "q": q[:, :num_heads],
        "k_cache": caches[0],
        "v_cache": caches[1],
        "block_tables": tables,
        "seq_lens": torch.tensor(seq_lens, dtype=torch.int32),
        "scale": 1.3 * head_size**-0.5,
        "alibi_slopes": 0.7 * 0.1 ** torch.linspace(0, 1, num_heads) if alibi else None,
    }


def token_places(arguments: dict[str, object], sequence: int) -> tuple[Tensor, Tensor]:
    """Blocks and offsets of the tokens of a sequence."""
    tokens = torch.arange(int(arguments["seq_lens"][sequence]))
    block_size = arguments["k_cache"].shape[2]
    return arguments["block_tables"][sequence, tokens // block_size].long(), tokens % block_size


def expected(arguments: dict[str, object]) -> Tensor:
    """[num_seqs, num_heads, head_size] float64: gathered token by token, then the oracle."""
    slopes = arguments["alibi_slopes"]
    outs = []
    for sequence, q in enumerate(arguments["q"]):
        blocks, offsets = token_places(arguments, sequence)
        k, v = (
            arguments[name][blocks, :, offsets].double().numpy() for name in ("k_cache", "v_cache")
        )
        query = q[None].double().numpy()
        of_heads = None if slopes is None else slopes.double().numpy()
        attended = oracle.attend(query, k, v, arguments["scale"], of_heads, first=len(k) - 1)
        outs.append(attended["out"][0])
    return torch.from_numpy(np.stack(outs))


def error(out: Tensor, arguments: dict[str, object]) -> float:
    """The largest relative norm of a head's error; NaN if there is one."""
    wanted = expected(arguments)
    return ((out.double() - wanted).norm(dim=-1) / wanted.norm(dim=-1)).max().item()


def is_right(out: Tensor, arguments: dict[str, object]) -> bool:
    return error(out, arguments) < BOUNDS[arguments["q"].dtype]


def taken_out(arguments: dict[str, object]) -> dict[str, object]:
    """The same step for prepare_triton, with the newest tokens beside the cache, where their slots
    are NaN now."""
    places = [token_places(arguments, sequence) for sequence in range(len(arguments["q"]))]
    blocks, offsets = (torch.stack([place[i][-1] for place in places]) for i in range(2))
    changed = {"seq_lens": arguments["seq_lens"] - 1}
    for name in ("k_cache", "v_cache"):
        changed[f"{name[0]}_new"] = arguments[name][blocks, :, offsets].clone()
        changed[name] = arguments[name].clone()
        changed[name][blocks, :, offsets] = torch.nan
    return arguments | changed
