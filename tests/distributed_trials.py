"""Trials on several ranks, for wrong examples.

A trial says what is wrong with the pa_tutorial that can be imported when it runs; "" for nothing.
The ranks are other processes: they get the sources that are changed here, and import them, too.
"""

import importlib
import sys
from collections.abc import Callable
from functools import partial
from types import ModuleType, SimpleNamespace
from unittest.mock import patch

import torch

from pa_tutorial.checks.cases import DECODE_CASES
from pa_tutorial.distributed import ranks
from pa_tutorial.distributed.group import Group

DISTRIBUTED = "distributed"  # what tests/wrong/ calls them
SERVING = "tests.distributed.distributed_serving"
LIMIT = 24.0  # seconds after which a changed rank that keeps the others waiting is named
_pools: dict[int, ranks.Ranks] = {}


def run_on_ranks(name: str) -> str:
    """A trial on ranks that import what can be imported here. A lost rank is a finding."""
    num_ranks, _ = TRIALS[name]
    if num_ranks not in _pools or not _pools[num_ranks].launcher.is_alive():
        # A process is started by the names of our modules: for that moment, the unchanged ones.
        with patch.dict(sys.modules, {ranks.__name__: ranks}):
            _pools[num_ranks] = ranks.Ranks(num_ranks, limit=LIMIT)
    try:
        found = _pools[num_ranks].run(_on_a_rank, name, changed_sources())
    except ranks.RanksLost as lost:
        return f"the job ended: {lost}"
    return "; ".join(f"rank {rank}: {wrong}" for rank, wrong in enumerate(found) if wrong)


def changed_sources() -> dict[str, str]:
    """File -> its text, of the wrong example that is applied now."""
    from tests.wrong_examples import _ChangedFinder

    finders = [finder for finder in sys.meta_path if isinstance(finder, _ChangedFinder)]
    return finders[0]._sources if finders else {}


def _on_a_rank(group: Group, name: str, sources: dict[str, str]) -> str:
    from tests.wrong_examples import applied

    with patch.dict(sys.modules), applied(SimpleNamespace(sources=lambda: sources)):
        sys.modules.pop(SERVING, None)
        changed = now("pa_tutorial.distributed.group")  # and its comparisons
        return TRIALS[name][1](changed.Group(**vars(group)))


def now(name: str) -> ModuleType:
    """A module as it is now: with the change of a wrong example, if one is applied."""
    return importlib.import_module(name)


def serving(group: Group, model: str) -> str:
    """The tokens are those of one device."""
    here = now(SERVING)
    served, expected = here.serve_all(group, model), here.one_device(model)
    if served is None or served == expected:
        return ""
    pairs = enumerate(zip(served, expected, strict=True))
    return f"other tokens in requests {[i for i, (one, other) in pairs if one != other]}"


def context(group: Group, case: str, stage: str) -> str:
    """A decode case of the ladder, in the layout of a stage, with the blocks dealt out."""
    running, ours = now("pa_tutorial.checks.running"), now("pa_tutorial.distributed.context")

    def decode(**fields: object) -> torch.Tensor:
        step = now("pa_tutorial.attention.step").DecodeStep(**fields)
        part = ours.own_part(step, ours.deal_out(step, group.rank, group.num_ranks))
        return ours.merge_over_ranks(part).to(step.q.dtype)

    stages = now("pa_tutorial.checks.ladder").STAGES
    result, _ = running.judge(running.stage_trial(stages[stage], case), decode)
    return "" if result.passed else result.diagnosis


def part_of_a_rank() -> tuple[torch.Tensor, ...]:
    """Of 2 sequences, 3 heads of 8 elements."""
    one = now("pa_tutorial.attention.online").Part
    return one(torch.zeros(2, 3), torch.ones(2, 3), torch.ones(2, 3, 8))


def bytes_of_a_merge(group: Group) -> str:
    """Two numbers and an accumulator for each head, 4 bytes a number."""
    with now("pa_tutorial.distributed.wire").Wire() as counted:
        now("pa_tutorial.distributed.context").merge_over_ranks(part_of_a_rank())
    found = [one.num_bytes for one in counted.collectives]
    expected = [2 * 3 * 4, 2 * 3 * (1 + 8) * 4]
    return "" if found == expected else f"{found} bytes, not {expected}"


def nan_of_one_rank(group: Group) -> str:
    """A maximum over ranks may drop a NaN; the result must not look healthy."""
    part = part_of_a_rank()
    for tensor in part if group.rank else ():
        tensor[0, 1] = torch.nan
    out = now("pa_tutorial.distributed.context").merge_over_ranks(part)
    found = out.isnan().any(dim=-1).nonzero().tolist()
    return "" if found == [[0, 1]] else f"NaN in sequences and heads {found}, not in [0, 1]"


def facts_of_other_shape(group: Group) -> str:
    """The same bytes in another shape are another batch."""
    tables = torch.arange(12, dtype=torch.int32).view((3, 4) if group.rank else (4, 3))
    try:
        group.agree("step 0", tables)
    except RuntimeError as error:
        named = "step 0: ranks [1] differ from rank 0" in str(error)
        return "" if named else f"the disagreement does not name the rank: {error}"
    return "tables of different shapes pass for equal"


# 4 ranks: TinyLM has 2 KV heads, so two ranks have the same one; of qwen2 all have its only one.
SERVED = ((2, "tiny"), (4, "tiny"), (2, "alibi"), (2, "biased"), (4, "llama"), (4, "qwen2"))
TRIALS: dict[str, tuple[int, Callable[[Group], str]]] = {
    function.__name__: (2, function)
    for function in (bytes_of_a_merge, nan_of_one_rank, facts_of_other_shape)
}
for num_ranks, model in SERVED:
    name = "serving" if model == "tiny" else model
    TRIALS[f"{name}_on_{num_ranks}_ranks"] = num_ranks, partial(serving, model=model)
for case in DECODE_CASES:
    if not case.cache_dtype:  # attention over a split context doesn't read 8-bit caches
        TRIALS[f"context/{case.id}"] = 4, partial(context, case=case.id, stage="paged_online")
        vllm = partial(context, case=case.id, stage="paged_gather")
        TRIALS[f"context/{case.id}/vllm"] = 2, vllm
