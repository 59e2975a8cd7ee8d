"""What the tests let ranks do: the processes import these functions, so they stand in a module."""

from collections.abc import Callable

from torch import Tensor

from pa_tutorial.attention.online import Part
from pa_tutorial.checks import attempt
from pa_tutorial.distributed.context import (
    context_parallel_decode,
    deal_out,
    merge_over_ranks,
)
from pa_tutorial.distributed.group import Group
from pa_tutorial.distributed.watch import Disagreement
from pa_tutorial.distributed.wire import Collective, Wire


def context_parallel_stage(group: Group, blocks: list[list[int]]) -> Callable[..., Tensor]:
    """A function with the signature of a paged stage, computed by all ranks.

    blocks  receives, for each call, how many blocks this rank holds of each sequence
    """

    def decode(
        q: Tensor,
        k_cache: Tensor,
        v_cache: Tensor,
        block_tables: Tensor,
        seq_lens: Tensor,
        scale: float,
        alibi_slopes: Tensor | None = None,
    ) -> Tensor:
        whole = k_cache, v_cache, block_tables, seq_lens
        share = deal_out(*whole, group.rank, group.num_ranks)
        is_token = share.is_token(seq_lens).unflatten(1, (len(share.block_indices), -1))
        blocks.append(is_token.any(dim=-1).sum(dim=1).tolist())
        return context_parallel_decode(q, share, seq_lens, scale, alibi_slopes)

    return decode


def attempt_context_parallel(
    group: Group, stage: str
) -> tuple[dict[str, str], int, list[list[int]]]:
    """What is wrong in which case; the number of cases; the blocks of this rank in each case."""
    blocks: list[list[int]] = []
    result = attempt(stage, context_parallel_stage(group, blocks))
    return {c.name: c.diagnosis for c in result.cases if not c.passed}, result.total, blocks


def merge_given(group: Group, parts: list[tuple[Tensor, Tensor, Tensor]]) -> Tensor:
    """Each rank comes with its own part."""
    return merge_over_ranks(Part(*parts[group.rank]))


def decode_counted(group: Group, given: dict[str, Tensor], scale: float) -> list[Collective]:
    """The collectives of one context-parallel decode step."""
    whole = given["k_cache"], given["v_cache"], given["block_tables"], given["seq_lens"]
    share = deal_out(*whole, group.rank, group.num_ranks)
    with Wire() as wire:
        context_parallel_decode(given["q"], share, given["seq_lens"], scale)
    return wire.collectives


def agree_on(group: Group, facts: list[dict[str, object]]) -> str:
    """What the disagreement says if each rank has its own facts; "" if there is none."""
    try:
        group.agree("step 7", facts[group.rank])
    except Disagreement as error:
        return str(error)
    return ""
