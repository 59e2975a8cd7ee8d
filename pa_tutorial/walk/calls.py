"""Calls of a function under test, on a problem: how it is fed, and how it must behave.

The functions here adapt a stage, which knows only tensors, to a problem. They return
the stage's output and intermediates in the shapes of `problem.expected()`.
"""

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from pa_tutorial.attention.cached import KVCache
from pa_tutorial.walk.problem import DecodeProblem, SequenceProblem
from pa_tutorial.walk.regimes import strided_view

# What an intermediate holds where there is no token.
EMPTY = {"qk": float("-inf"), "logits": 0.0}
# Intermediates of which every head of every sequence has one: [num_seqs, num_heads, n].
OF_A_HEAD = ("qk_max", "exp_sum", "accs")
# Of the CPU kernel: more than most machines have cores, so that most problems have partitions to
# merge; and the result is the same on every machine.
NUM_SHARES = 5
# Tokens: half of vLLM's.
MOST_OF_A_PARTITION = 256
# Of the Triton kernel: small, so that most problems have several tiles.
TILE_SIZE = 16

Function = Callable[..., Tensor]


class AnswerError(Exception):
    """What a function under test did cannot be compared; the message is for its author."""


def require_written(result: Any) -> Any:
    """A function that is still a stub returns None: say so."""
    if result is None:
        raise AnswerError("the function returned None: not written yet, or `return` is missing")
    return result


def takes(function: Function, name: str) -> bool:
    """Whether the function itself can be called with this argument by name."""
    try:
        parameters = inspect.signature(function, follow_wrapped=False).parameters
    except (TypeError, ValueError):  # some built-in functions hide their arguments
        return False
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return name in parameters and parameters[name].kind in named


def call(function: Function, tensors: dict[str, Tensor], *arguments: Any, **options: Any) -> Tensor:
    """Call an attention function and check how it behaved.

    tensors  its first arguments by name, q first
    arguments  the scale and the slopes, if there are any
    options  given by name, if the function takes them: probe, partition_size, num_shares,
             tile_size

    Raises AnswerError if it returned no tensor like q, wrote to a tensor, or returned the
    memory of one.
    """
    options = {name: value for name, value in options.items() if takes(function, name)}
    slopes = next((other for other in arguments if isinstance(other, Tensor)), None)
    inputs = tensors if slopes is None else tensors | {"alibi_slopes": slopes}
    before = {name: tensor.clone() for name, tensor in inputs.items()}
    out = require_written(function(*tensors.values(), *arguments, **options))
    q = before["q"]
    if not isinstance(out, Tensor):
        raise AnswerError(f"the function returned a {type(out).__name__}; it must return a tensor")
    if out.shape != q.shape or out.dtype != q.dtype or out.device != q.device:
        raise AnswerError(
            f"the function returned {list(out.shape)} {out.dtype} on {out.device}; it must return "
            f"the shape, dtype and device of q, {list(q.shape)} {q.dtype} on {q.device}"
        )
    for name, tensor in inputs.items():
        if not torch.allclose(tensor, before[name], rtol=0, atol=0, equal_nan=True):
            raise AnswerError(f"the function changed {name}; it must only read its inputs")
        if out.untyped_storage().data_ptr() == tensor.untyped_storage().data_ptr():
            raise AnswerError(f"the function returned {name} itself; it must return a new tensor")
    return out


def collected(shape: tuple[int, ...], calls: list[tuple[Any, dict[str, Any]]]) -> dict[str, Tensor]:
    """`qk` and `logits` of many calls in one array each, where a stage gives them.

    shape  of the whole array; its last dimension counts tokens
    calls  of each, the place in the array and the probe: [num_heads, num_queries, tokens so far]

    Raises AnswerError if only some calls gave one, or in another shape.
    """
    arrays = {}
    for name, empty in EMPTY.items():
        given = [(place, probe[name]) for place, probe in calls if name in probe]
        if given:
            arrays[name] = torch.full(shape, empty)
        for place, piece in given:
            _put(name, torch.as_tensor(piece), arrays[name][place])
        if 0 < len(given) < len(calls):
            raise AnswerError(f"probe[{name!r}] was filled in {len(given)} of {len(calls)} calls")
    return arrays


def _put(name: str, piece: Tensor, target: Tensor) -> None:
    """Whatever width it has: too few or too many tokens show in the comparison."""
    if piece.is_complex() or piece.shape[:-1].numel() != target.shape[:-1].numel():
        raise AnswerError(
            f"probe[{name!r}] is {list(piece.shape)} {piece.dtype}; it must be real, "
            f"{list(target.shape[:-1])} and the tokens so far"
        )
    width = min(piece.shape[-1], target.shape[-1])
    piece = piece.detach().float()[..., :width]
    target[..., :width] = piece.reshape(*target.shape[:-1], width)


def run_sequence(problem: SequenceProblem, function: Function, cached: bool) -> dict[str, Tensor]:
    """Feed the sequence to the model, in steps if there is a cache; collect every layer."""
    model, tokens, config = problem.model(), problem.tokens(), problem.config
    seq_len = problem.seq_len
    # Twice the room that is needed: what lies behind the sequence is NaN.
    caches = model.new_caches(2 * seq_len) if cached else None
    outs, places, probes = [], [], []

    def attention(q: Tensor, k: Tensor, v: Tensor, *arguments: Any) -> Tensor:
        probes.append({})
        q = strided_view(q) if problem.strided_q else q
        return call(function, {"q": q, "k": k, "v": v}, *arguments, probe=probes[-1])

    first = 0
    for num_tokens in problem.steps if cached else (seq_len,):
        new = slice(first, first + num_tokens)
        step: dict[str, list[Tensor]] = {}
        model(tokens[new], caches, attention, step)
        outs.append(torch.stack(step["out"]))
        places += [(layer, slice(None), new) for layer in range(config.num_layers)]
        first = new.stop
    shape = (config.num_layers, config.num_heads, seq_len, seq_len)
    calls = [*zip(places, probes, strict=True)]
    return {**collected(shape, calls), "out": torch.cat(outs, dim=1)}


def run_decode(problem: DecodeProblem, function: Function, cached: bool) -> dict[str, Tensor]:
    """One query a sequence. Without a cache, the queries before it are there too, all zero."""
    inputs = problem.inputs()
    outs, probes = [], []
    for q, k, v in zip(inputs.q.split(1), inputs.keys, inputs.values, strict=True):
        seq_len = len(k)
        if cached:
            cache = KVCache(2 * seq_len, problem.num_kv_heads, problem.head_size, problem.dtype)
            cache.append(k[:-1], v[:-1])
            cache.append(k[-1:], v[-1:])
            k, v = cache.keys, cache.values
        else:
            q = torch.cat([q.new_zeros(seq_len - 1, *q.shape[1:]), q])
        probes.append({})
        tensors = {"q": q, "k": k, "v": v}
        out = call(function, tensors, inputs.scale, inputs.alibi_slopes, probe=probes[-1])
        outs.append(out[-1])
    # Without a cache, intermediates have a row for every older query.
    given = collected(scores_shape(problem), [*enumerate(probes)] if cached else [])
    return {**given, "out": torch.stack(outs)}


def scores_shape(problem: DecodeProblem) -> tuple[int, int, int]:
    return len(problem.seq_lens), problem.num_heads, max(problem.seq_lens)


def some_partitions(problem: DecodeProblem) -> int:
    """Tokens of a partition: a third of the longest sequence in whole blocks, at most 256.

    With vLLM's 512 always, most problems would have one partition, and nothing to reduce; and the
    longest would not have more partitions than a warp has lanes.
    """
    third_of_blocks = -(-max(problem.seq_lens) // (3 * problem.block_size))  # rounded up
    return min(third_of_blocks * problem.block_size, MOST_OF_A_PARTITION)


def run_paged(problem: DecodeProblem, function: Function, layout: str) -> dict[str, Tensor]:
    """One call for the whole batch, over a cache in blocks."""
    inputs = problem.paged(layout)
    names = ("q", "k_cache", "v_cache", "block_tables", "seq_lens")
    tensors = {name: getattr(inputs, name) for name in names}
    probe: dict[str, Tensor] = {}
    options = {"partition_size": some_partitions(problem), "num_shares": NUM_SHARES}
    options |= {"tile_size": TILE_SIZE, "probe": probe}
    out = call(function, tensors, inputs.scale, inputs.alibi_slopes, **options)
    if problem.called_twice:
        kept = out.clone()
        options["probe"] = {}
        call(function, tensors | {"q": -inputs.q}, inputs.scale, inputs.alibi_slopes, **options)
        if not torch.equal(out, kept):
            raise AnswerError("the next call changed this result; each must return a new tensor")
    of_a_head = {name: probe[name] for name in OF_A_HEAD if name in probe}
    return {**collected(scores_shape(problem), [(..., probe)]), **of_a_head, "out": out}
