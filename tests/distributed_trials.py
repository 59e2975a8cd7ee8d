"""Trials on several ranks, for wrong examples.

A trial says what is wrong with the pa_tutorial that can be imported when it runs; "" for nothing.
The ranks are other processes: they get the sources that are changed here, and import them, too.
"""

import atexit
import importlib
import sys
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch

from pa_tutorial.distributed import ranks
from pa_tutorial.distributed.group import Group
from pa_tutorial.walk.cases import DECODE_CASES

DISTRIBUTED = "distributed"  # what tests/wrong/ calls them
LIMIT = 12.0  # seconds for which a changed rank may keep the others waiting
_pools: dict[int, ranks.Ranks] = {}


def run_on_ranks(name: str) -> str:
    """A trial on ranks that import what can be imported here. A lost rank is a finding."""
    num_ranks, _ = TRIALS[name]
    if num_ranks not in _pools or not _pools[num_ranks].processes:
        # A process is started by the names of our modules: for that moment, the unchanged ones.
        with patch.dict(sys.modules, {ranks.__name__: ranks}):
            _pools[num_ranks] = ranks.Ranks(num_ranks, limit=LIMIT)
    try:
        found = _pools[num_ranks].run(_on_a_rank, name, changed_sources())
    except ranks.RanksLost as lost:
        return f"the job ended: {lost}"
    return "; ".join(f"rank {rank}: {wrong}" for rank, wrong in enumerate(found) if wrong)


@atexit.register
def end_ranks() -> None:
    for pool in _pools.values():
        pool.close()


def changed_sources() -> dict[str, str]:
    """Module name -> source, of the wrong example that is applied now."""
    from tests.wrong_examples import _ChangedFinder

    finders = [finder for finder in sys.meta_path if isinstance(finder, _ChangedFinder)]
    return finders[0]._sources if finders else {}


def _on_a_rank(group: Group, name: str, sources: dict[str, str]) -> str:
    from tests.wrong_examples import applied

    kept = sys.modules.pop("tests.distributed.distributed_serving", None)
    try:
        with applied(SimpleNamespace(sources=lambda: sources)):
            # Hashes and comparisons are those of the changed package, too.
            changed = importlib.import_module("pa_tutorial.distributed.group")
            here = changed.Group(**vars(group))
            here.fail = partial(fail_alone, group)
            return TRIALS[name][1](here)
    except (Exception, Disagreed) as error:
        if type(error).__name__ not in ("Disagreement", "Disagreed"):
            group.fail(error)
        return str(error)
    finally:
        sys.modules.pop("tests.distributed.distributed_serving", None)
        if kept:
            sys.modules["tests.distributed.distributed_serving"] = kept


class Disagreed(BaseException):
    """A Disagreement, which every rank has at the same place: they can go on to the next trial. No
    Exception: the engine of rank 0 would try the step again, without the others."""


def fail_alone(group: Group, error: Exception) -> None:
    """End the job, unless every rank has the same error."""
    if type(error).__name__ == "Disagreement":
        raise Disagreed(str(error))
    group.fail(error)


def serving(group: Group, model: str) -> str:
    """The tokens are those of one device. Half of the requests show what is wrong."""
    here = importlib.import_module("tests.distributed.distributed_serving")
    options = here.TIGHT | {"num_requests": here.NUM_REQUESTS // 2}
    served = here.serve_all(group, model, **options)
    if served is None:
        return ""
    expected = here.one_device(model, **options)
    wrong = [
        index
        for index, pair in enumerate(zip(served.completions, expected.completions, strict=True))
        if pair[0].token_ids != pair[1].token_ids
    ]
    return f"other tokens in requests {wrong}" if wrong else ""


def context(group: Group, case: str, stage: str) -> str:
    """A decode case of the ladder, in the layout of a stage, with the blocks dealt out."""
    running = importlib.import_module("pa_tutorial.checks.running")
    ours = importlib.import_module("pa_tutorial.distributed.context")
    stages = importlib.import_module("pa_tutorial.walk.ladder").STAGES

    def decode(q, k_cache, v_cache, block_tables, seq_lens, scale, alibi_slopes=None) -> Any:
        whole = k_cache, v_cache, block_tables, seq_lens
        share = ours.deal_out(*whole, group.rank, group.num_ranks)
        part = ours.own_part(q, share, seq_lens, scale, alibi_slopes)
        return ours.merge_over_ranks(part).to(q.dtype)

    result, _ = running.judge(running.stage_trial(stages[stage], case), decode)
    return "" if result.passed else result.diagnosis


def bytes_of_a_merge(group: Group) -> str:
    """Two numbers and an accumulator for each head, 4 bytes a number."""
    ours = importlib.import_module("pa_tutorial.distributed.context")
    wire = importlib.import_module("pa_tutorial.distributed.wire")
    online = importlib.import_module("pa_tutorial.attention.online")
    with wire.Wire() as counted:
        ours.merge_over_ranks(online.Part(torch.zeros(2, 3), torch.ones(2, 3), torch.ones(2, 3, 8)))
    found = [one.num_bytes for one in counted.collectives]
    expected = [2 * 3 * 4, 2 * 3 * (1 + 8) * 4]
    return "" if found == expected else f"{found} bytes, not {expected}"


def facts_of_other_shape(group: Group) -> str:
    """The same bytes in another shape are another batch."""
    tables = torch.arange(12, dtype=torch.int32).view((3, 4) if group.rank else (4, 3))
    try:
        group.agree("step 0", {"block_tables": tables})
    except RuntimeError as error:
        named = "rank 1 has other block_tables" in str(error)
        return "" if named else f"the disagreement does not name what differs: {error}"
    return "tables of different shapes pass for equal"


# 4 ranks: TinyLM has 2 KV heads, so two ranks have the same one; of qwen2 all have its only one.
SERVED = ((2, "tiny"), (4, "tiny"), (2, "alibi"), (2, "biased"), (4, "llama"), (4, "qwen2"))
TRIALS: dict[str, tuple[int, Callable[[Group], str]]] = {
    "bytes_of_a_merge": (2, bytes_of_a_merge),
    "facts_of_other_shape": (2, facts_of_other_shape),
}
for num_ranks, model in SERVED:
    name = "serving" if model == "tiny" else model
    TRIALS[f"{name}_on_{num_ranks}_ranks"] = num_ranks, partial(serving, model=model)
for case in DECODE_CASES:
    plain, vllm = (
        partial(context, case=case.id, stage=s) for s in ("paged_online", "paged_gather")
    )
    TRIALS |= {f"context/{case.id}": (4, plain), f"context/{case.id}/vllm": (2, vllm)}
