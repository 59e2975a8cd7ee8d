"""Trials on several ranks, for wrong examples.

A trial says what is wrong with the pa_tutorial that can be imported when it runs; "" for nothing.
The ranks are other processes: they get the sources that are changed here, and import them, too.
"""

import importlib
import sys
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from unittest.mock import patch

import torch

from pa_tutorial.checks.cases import DECODE_CASES
from pa_tutorial.distributed import ranks
from pa_tutorial.distributed.group import Group

DISTRIBUTED = "distributed"  # what tests/wrong/ calls them
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
        sys.modules.pop("tests.distributed.distributed_serving", None)
        changed = importlib.import_module("pa_tutorial.distributed.group")  # and its comparisons
        return TRIALS[name][1](changed.Group(**vars(group)))


def serving(group: Group, model: str) -> str:
    """The tokens are those of one device."""
    here = importlib.import_module("tests.distributed.distributed_serving")
    served = here.serve_all(group, model)
    if served is None or served == here.one_device(model):
        return ""
    pairs = zip(served.token_ids, here.one_device(model).token_ids, strict=True)
    return f"other tokens in requests {[i for i, (one, other) in enumerate(pairs) if one != other]}"


def serving_from_8_bits(group: Group) -> str:
    here = importlib.import_module("tests.distributed.distributed_serving")
    served = here.serve_from_8_bits(group)
    wrong = [one for one in served if one != served[1] or one[0] != torch.float8_e4m3fn]
    return f"{wrong} of {served}, by the ranks and by one device" if wrong else ""


def step_of_a_rank(group: Group) -> str:
    """Which a rank that fails names in its last word, counted on every rank alike."""
    here = importlib.import_module("tests.distributed.distributed_serving")
    here.serve_all(group, "alibi")
    number = int(group.doing.removeprefix("step "))
    return "" if number > 0 else "after many steps, it is in step 0"


def context(group: Group, case: str, stage: str) -> str:
    """A decode case of the ladder, in the layout of a stage, with the blocks dealt out."""
    running = importlib.import_module("pa_tutorial.checks.running")
    ours = importlib.import_module("pa_tutorial.distributed.context")
    step_of = importlib.import_module("pa_tutorial.attention.step").DecodeStep
    stages = importlib.import_module("pa_tutorial.checks.ladder").STAGES

    def decode(q, k_cache, v_cache, block_tables, seq_lens, scale, alibi_slopes=None):
        step = step_of(q, k_cache, v_cache, block_tables, seq_lens, scale, alibi_slopes)
        part = ours.own_part(step, ours.deal_out(step, group.rank, group.num_ranks))
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


def nan_of_one_rank(group: Group) -> str:
    """A maximum over ranks may drop a NaN; the result must not look healthy."""
    ours = importlib.import_module("pa_tutorial.distributed.context")
    online = importlib.import_module("pa_tutorial.attention.online")
    part = online.Part(torch.zeros(2, 3), torch.ones(2, 3), torch.ones(2, 3, 8))
    for tensor in part if group.rank else ():
        tensor[0, 1] = torch.nan
    found = ours.merge_over_ranks(part).isnan().any(dim=-1).nonzero().tolist()
    return "" if found == [[0, 1]] else f"NaN in sequences and heads {found}, not in [0, 1]"


def bytes_of_an_agreement(group: Group) -> str:
    """A message from rank 0 with its length, and a hash of 8 bytes for facts of any size."""
    wire = importlib.import_module("pa_tutorial.distributed.wire")
    with wire.Wire() as counted:
        group.from_rank_0("message")
        group.agree("now", torch.zeros(100))
    length, message, hashes = counted.collectives
    is_right = length == ("broadcast", 8) and message[0] == "broadcast"
    return "" if is_right and hashes == ("all_gather", 8) else f"{counted.collectives}"


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
    "bytes_of_a_merge": (2, bytes_of_a_merge),
    "bytes_of_an_agreement": (2, bytes_of_an_agreement),
    "nan_of_one_rank": (2, nan_of_one_rank),
    "serving_from_8_bits": (2, serving_from_8_bits),
    "step_of_a_rank": (2, step_of_a_rank),
    "facts_of_other_shape": (2, facts_of_other_shape),
}
for num_ranks, model in SERVED:
    name = "serving" if model == "tiny" else model
    TRIALS[f"{name}_on_{num_ranks}_ranks"] = num_ranks, partial(serving, model=model)
for case in DECODE_CASES:
    if case.cache_dtype:  # attention over a split context doesn't read 8-bit caches
        continue
    plain, vllm = (
        partial(context, case=case.id, stage=s) for s in ("paged_online", "paged_gather")
    )
    TRIALS |= {f"context/{case.id}": (4, plain), f"context/{case.id}/vllm": (2, vllm)}
