"""Calls of a function under test, on a problem: how it is fed, and how it must behave.

The functions here adapt a stage, which knows only tensors, to a problem. They return
the stage's output and intermediates in the shapes of `problem.expected()`.
"""

import inspect
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor

from pa_tutorial.attention.cached import KVCache
from pa_tutorial.walk.problem import DecodeProblem, SequenceProblem
from pa_tutorial.walk.regimes import strided_view

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


class Intermediates:
    """Collects `qk` and `logits` of many calls into one array each, where a stage gives them.

    shape   of the whole array; its last dimension counts tokens
    """

    EMPTY: ClassVar[dict[str, float]] = {"qk": float("-inf"), "logits": 0.0}

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.arrays = {name: torch.full(shape, empty) for name, empty in self.EMPTY.items()}
        self.filled = dict.fromkeys(self.EMPTY, 0)
        self.calls = 0

    def add(self, probe: dict[str, Any], place: tuple[Any, ...]) -> None:
        """Put one call's intermediates, [num_heads, num_queries, tokens so far], to arrays[place].

        Whatever width they have: too few or too many tokens show in the comparison.
        """
        self.calls += 1
        for name in self.EMPTY.keys() & probe.keys():
            piece = torch.as_tensor(probe[name])
            target = self.arrays[name][place]
            if piece.is_complex() or piece.shape[:-1].numel() != target.shape[:-1].numel():
                raise AnswerError(
                    f"probe[{name!r}] is {list(piece.shape)} {piece.dtype}; it must be real, "
                    f"{list(target.shape[:-1])} and the tokens so far"
                )
            width = min(piece.shape[-1], target.shape[-1])
            piece = piece.detach().float()[..., :width]
            target[..., :width] = piece.reshape(*target.shape[:-1], width)
            self.filled[name] += 1

    def filled_arrays(self) -> dict[str, Tensor]:
        """The arrays that every call filled; AnswerError if only some did."""
        for name, filled in self.filled.items():
            if 0 < filled < self.calls:
                raise AnswerError(f"probe[{name!r}] was filled in {filled} of {self.calls} calls")
        return {name: self.arrays[name] for name, filled in self.filled.items() if filled}


def run_sequence(problem: SequenceProblem, function: Function, cached: bool) -> dict[str, Tensor]:
    """Feed the sequence to the model, in steps if there is a cache; collect every layer."""
    model, tokens, config = problem.model(), problem.tokens(), problem.config
    seq_len = problem.seq_len
    # Twice the room that is needed: what lies behind the sequence is NaN.
    caches = model.new_caches(2 * seq_len) if cached else None
    intermediates = Intermediates((config.num_layers, config.num_heads, seq_len, seq_len))
    outs = []
    first = 0
    for num_tokens in problem.steps if cached else (seq_len,):
        last = first + num_tokens
        probes: list[dict[str, Tensor]] = []

        def attention(
            q: Tensor, k: Tensor, v: Tensor, *arguments: Any, probes: list = probes
        ) -> Tensor:
            probes.append({})
            q = strided_view(q) if problem.strided_q else q
            return call(function, {"q": q, "k": k, "v": v}, *arguments, probe=probes[-1])

        step: dict[str, list[Tensor]] = {}
        model(tokens[first:last], caches, attention, step)
        outs.append(torch.stack(step["out"]))
        for layer, probe in enumerate(probes):
            intermediates.add(probe, (layer, slice(None), slice(first, last)))
        first = last
    return {**intermediates.filled_arrays(), "out": torch.cat(outs, dim=1)}


def run_decode(problem: DecodeProblem, function: Function, cached: bool) -> dict[str, Tensor]:
    """One query a sequence. Without a cache, the queries before it are there too, all zero."""
    inputs = problem.inputs()
    shape = (len(problem.seq_lens), problem.num_heads, max(problem.seq_lens))
    intermediates = Intermediates(shape)
    outs = []
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
        tensors = {"q": q, "k": k, "v": v}
        out = call(function, tensors, inputs.scale, inputs.alibi_slopes, probe=probe)
        outs.append(out[-1])
        if cached:  # the other form has a row for every older query
            intermediates.add(probe, (sequence,))
    return {**intermediates.filled_arrays(), "out": torch.stack(outs)}


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
    intermediates = Intermediates((len(problem.seq_lens), problem.num_heads, max(problem.seq_lens)))
    names = ("q", "k_cache", "v_cache", "block_tables", "seq_lens")
    tensors = {name: getattr(inputs, name) for name in names}
    probe: dict[str, Tensor] = {}
    options = {
        "probe": probe,
        "partition_size": some_partitions(problem),
        "num_shares": NUM_SHARES,
        "tile_size": TILE_SIZE,
    }
    out = call(function, tensors, inputs.scale, inputs.alibi_slopes, **options)
    if problem.called_twice:
        kept = out.clone()
        options["probe"] = {}
        call(function, tensors | {"q": -inputs.q}, inputs.scale, inputs.alibi_slopes, **options)
        if not torch.equal(out, kept):
            raise AnswerError("the next call changed this result; each must return a new tensor")
    intermediates.add(probe, (...,))
    per_head = {name: probe[name] for name in OF_A_HEAD if name in probe}
    return {**intermediates.filled_arrays(), **per_head, "out": out}
