"""The stages in order: what is new in each, where it runs, and what it is checked against.

The functions here adapt a stage, which knows only tensors, to a problem. They return
the stage's output and intermediates in the shapes of `problem.expected()`.
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pa_tutorial.attention.cached import KVCache, cached_attention
from pa_tutorial.attention.full import causal_attention
from pa_tutorial.problem import DecodeProblem, SequenceProblem

Function = Callable[..., Tensor]
Adapter = Callable[..., dict[str, Tensor]]


@dataclass(frozen=True)
class Stage:
    """One step of the walk.

    function         what the reader may replace
    adapters         kind of problem -> how the stage runs on it
    checked_against  the stages before it that must give the same result
    own_kinds        the kinds of problem on which the stage itself is checked
    """

    name: str
    new: str
    where: str
    function: Function
    adapters: dict[str, Adapter]
    checked_against: tuple[str, ...]
    own_kinds: tuple[str, ...]

    def run(
        self, problem: SequenceProblem | DecodeProblem, function: Function | None = None
    ) -> dict[str, Tensor]:
        """The stage's `out` (and `qk`, `logits` where it exposes them) on a problem."""
        return self.adapters[problem.kind](problem, function or self.function)


class AnswerError(Exception):
    """What a function under test did cannot be compared; the message is for its author."""


def require_written(result: Any) -> Any:
    """A function that is still a stub returns None: say so."""
    if result is None:
        raise AnswerError("the function returned None: not written yet, or `return` is missing")
    return result


def call(function: Function, *arguments: object, probe: dict[str, Tensor]) -> Tensor:
    """Call an attention function; give it `probe` if it takes one. Check what it returns."""
    q = arguments[0]
    try:
        takes_probe = "probe" in inspect.signature(function).parameters
    except ValueError:  # some built-in functions hide their arguments
        takes_probe = False
    options = {"probe": probe} if takes_probe else {}
    out = require_written(function(*arguments, **options))
    if not isinstance(out, Tensor):
        raise AnswerError(f"the function returned a {type(out).__name__}; it must return a tensor")
    if out.shape != q.shape or out.dtype != q.dtype:
        raise AnswerError(
            f"the function returned {list(out.shape)} {out.dtype}; "
            f"it must return the shape and dtype of q, {list(q.shape)} {q.dtype}"
        )
    return out


def run_sequence(problem: SequenceProblem, function: Function, cached: bool) -> dict[str, Tensor]:
    """Feed the sequence to the model, in steps if there is a cache; collect every layer."""
    model, tokens, config = problem.model(), problem.tokens(), problem.config
    seq_len = problem.seq_len
    # Twice the room that is needed: what lies behind the sequence is NaN.
    caches = model.new_caches(2 * seq_len) if cached else None
    shape = (config.num_layers, config.num_heads, seq_len, seq_len)
    qk, logits = torch.full(shape, float("-inf")), torch.zeros(shape)
    out = torch.full((config.num_layers, seq_len, config.num_heads, config.head_size), float("nan"))
    probed = False
    first = 0
    for num_tokens in problem.steps if cached else (seq_len,):
        probes: list[dict[str, Tensor]] = []

        def attention(*arguments: object, probes: list = probes) -> Tensor:
            probes.append({})
            return call(function, *arguments, probe=probes[-1])

        step: dict[str, list[Tensor]] = {}
        last = first + num_tokens
        model(tokens[first:last], caches, attention, step)
        out[:, first:last] = torch.stack(step["out"])
        for layer, probe in enumerate(probes):
            if probe:
                probed = True
                width = probe["qk"].shape[-1]
                # [num_heads, num_tokens, tokens so far]
                qk[layer, :, first:last, :width] = probe["qk"][..., :seq_len]
                logits[layer, :, first:last, :width] = probe["logits"][..., :seq_len]
        first = last
    return {"qk": qk, "logits": logits, "out": out} if probed else {"out": out}


def run_decode(problem: DecodeProblem, function: Function, cached: bool) -> dict[str, Tensor]:
    """One query a sequence. Without a cache, the queries before it are there too, all zero."""
    inputs = problem.inputs()
    num_seqs, longest = len(problem.seq_lens), max(problem.seq_lens)
    shape = (num_seqs, problem.num_heads, longest)
    qk, logits = torch.full(shape, float("-inf")), torch.zeros(shape)
    out = torch.full_like(inputs.q, float("nan"))
    probed = False
    for sequence, seq_len in enumerate(problem.seq_lens):
        q = inputs.q[sequence : sequence + 1]
        k, v = inputs.keys[sequence], inputs.values[sequence]
        if cached:
            cache = KVCache(2 * seq_len, problem.num_kv_heads, problem.head_size, problem.dtype)
            cache.append(k[:-1], v[:-1])
            cache.append(k[-1:], v[-1:])
            k, v = cache.keys, cache.values
        else:
            q = torch.cat([q.new_zeros(seq_len - 1, *q.shape[1:]), q])
        probe: dict[str, Tensor] = {}
        out[sequence] = call(function, q, k, v, inputs.scale, inputs.alibi_slopes, probe=probe)[-1]
        if probe:
            probed = True
            qk[sequence, :, :seq_len] = probe["qk"][:, -1, :seq_len]
            logits[sequence, :, :seq_len] = probe["logits"][:, -1, :seq_len]
    return {"qk": qk, "logits": logits, "out": out} if probed else {"out": out}


STAGES: dict[str, Stage] = {
    stage.name: stage
    for stage in (
        Stage(
            name="full_recompute",
            new="the definition, with the causal mask",
            where="torch",
            function=causal_attention,
            adapters={
                "sequence": lambda problem, f: run_sequence(problem, f, cached=False),
                "decode": lambda problem, f: run_decode(problem, f, cached=False),
            },
            checked_against=(),
            own_kinds=("sequence",),
        ),
        Stage(
            name="kv_cache",
            new="keep K and V; prefill, then one query a step",
            where="torch",
            function=cached_attention,
            adapters={
                "sequence": lambda problem, f: run_sequence(problem, f, cached=True),
                "decode": lambda problem, f: run_decode(problem, f, cached=True),
            },
            checked_against=("full_recompute",),
            own_kinds=("sequence", "decode"),
        ),
    )
}


def stage_named(name: str) -> Stage:
    """The stage of that name; ValueError lists the names there are."""
    if name not in STAGES:
        raise ValueError(f"stage is {name!r}; it must be one of {', '.join(STAGES)}")
    return STAGES[name]
