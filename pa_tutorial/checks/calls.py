"""Running a stage, or a reader's function in its place, on a problem; and how it must behave.

The functions here return the output and the intermediates in the shapes of `problem.expected()`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor

from pa_tutorial.attention.backend import Backend
from pa_tutorial.attention.cached import KVCache
from pa_tutorial.attention.step import DecodeStep
from pa_tutorial.checks.problem import DecodeProblem, SequenceProblem
from pa_tutorial.checks.regimes import strided_view
from pa_tutorial.tracebacks import ShortInNotebooks

# What an intermediate holds where there is no token.
EMPTY = {"qk": float("-inf"), "logits": 0.0}
# Intermediates per head and sequence: [num_seqs, num_heads, n].
PER_HEAD = ("qk_max", "exp_sum", "accs")

# What a function in the place of a paged stage takes; what a step may have besides, only if its
# `takes` says so.
OF_A_STEP = ("q", "k_cache", "v_cache", "block_tables", "seq_lens", "scale", "alibi_slopes")

Function = Callable[..., Tensor]


class AnswerError(ShortInNotebooks):
    """What a function under test did can't be compared; the message is for its author."""


class OnlyIfRightError(AnswerError):
    """What is wrong with an answer if its numbers, `found`, are right: it takes too much."""

    def __init__(self, message: str, found: Mapping[str, Any]) -> None:
        super().__init__(message)
        self.found = found


def require_written(result: Any) -> Any:
    """Say so if the function returned None, as a stub does."""
    if result is None:
        raise AnswerError("the function returned None: not written yet, or `return` is missing")
    return result


def same_numbers(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors have the same shape, type and numbers; here NaN is equal to NaN."""
    if (a.shape, a.dtype) != (b.shape, b.dtype):
        return False
    # Of a cache that nobody changed, the bytes are the same, and quicker to compare.
    bytes_of = [x.reshape(-1).view(torch.uint8) for x in (a, b)]
    return torch.equal(*bytes_of) or torch.allclose(a, b, rtol=0, atol=0, equal_nan=True)


def checked(run: Callable[[], Any], inputs: dict[str, Tensor]) -> Tensor:
    """The result of a run, if the function behaved.

    inputs  the tensors that it reads, by name, including q

    Raises AnswerError if it didn't return a tensor like q, wrote to an input, or returned an
    input's memory.
    """
    before = {name: tensor.clone() for name, tensor in inputs.items()}
    out = require_written(run())
    q = before["q"]
    if not isinstance(out, Tensor):
        raise AnswerError(f"the function returned a {type(out).__name__}; it must return a tensor")
    if out.shape != q.shape or out.dtype != q.dtype or out.device != q.device:
        raise AnswerError(
            f"the function returned {list(out.shape)} {out.dtype} on {out.device}; it must return "
            f"the shape, dtype and device of q, {list(q.shape)} {q.dtype} on {q.device}"
        )
    for name, tensor in inputs.items():
        if not same_numbers(tensor, before[name]):
            raise AnswerError(f"the function changed {name}; it must only read its inputs")
        if out.untyped_storage().data_ptr() == tensor.untyped_storage().data_ptr():
            raise AnswerError(f"the function returned {name} itself; it must return a new tensor")
    return out


@dataclass(frozen=True)
class Candidate:
    """A function to try in place of a stage.

    function  of (q, k, v, scale, alibi_slopes), or of the fields of a DecodeStep, by their names
    takes     what else it takes by name: "probe", a dict that it fills with qk and logits;
              "partition_size" if it replaces v2; "k_scale" and "v_scale" if it reads 8-bit caches
    """

    function: Function
    takes: Sequence[str] = ()

    def __call__(self, *inputs: object, **options: object) -> Any:
        taken = {
            name: value for name, value in options.items() if name in (*OF_A_STEP, *self.takes)
        }
        return self.function(*inputs, **taken)


@dataclass
class CandidateLaunch:
    """One decode step by a candidate."""

    candidate: Candidate
    step: DecodeStep
    sizes: dict[str, int]
    out: Any = None

    def run(self) -> Any:
        return self.probe()["out"]

    def probe(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        step = {field.name: getattr(self.step, field.name) for field in fields(DecodeStep)}
        scales = {"k_scale": self.step.k_scale, "v_scale": self.step.v_scale}
        self.out = self.candidate(probe=found, **step, **scales, **self.sizes)
        return found | {"out": self.out}


@dataclass(frozen=True)
class CandidateBackend:
    """A candidate as a backend (pa_tutorial.attention.backend)."""

    candidate: Candidate
    layout: str
    reusable: ClassVar[bool] = False

    def prepare(self, step: DecodeStep, **sizes: int) -> CandidateLaunch:
        return CandidateLaunch(self.candidate, step, sizes)

    def why_absent(self) -> None:
        """None, because it is here."""


def collected(shape: tuple[int, ...], calls: list[tuple[Any, dict[str, Any]]]) -> dict[str, Tensor]:
    """`qk` and `logits` of many calls in one array each, as far as a stage provides them.

    shape  of the whole array; its last dimension counts tokens
    calls  for each, the place in the array and the probe: [num_heads, num_queries, tokens so far]

    Raises AnswerError if only some calls filled one, or with another shape.
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
    """Accepts any width, because too few or too many tokens show in the comparison."""
    if piece.is_complex() or piece.shape[:-1].numel() != target.shape[:-1].numel():
        raise AnswerError(
            f"probe[{name!r}] is {list(piece.shape)} {piece.dtype}; it must be real, "
            f"of shape {list(target.shape[:-1])} and the tokens so far"
        )
    width = min(piece.shape[-1], target.shape[-1])
    piece = piece.detach().float()[..., :width]
    target[..., :width] = piece.reshape(*target.shape[:-1], width)


def tensors_of(**inputs: object) -> dict[str, Tensor]:
    """The inputs that aren't None."""
    return {name: tensor for name, tensor in inputs.items() if isinstance(tensor, Tensor)}


def run_sequence(problem: SequenceProblem, candidate: Candidate, cached: bool) -> dict[str, Tensor]:
    """Feed the sequence to the model, in steps if there is a cache; collect all layers' results."""
    model, tokens, config = problem.model(), problem.tokens(), problem.config
    seq_len = problem.seq_len
    # Twice the room that is needed; the unused half is NaN.
    caches = model.new_caches(2 * seq_len) if cached else None
    outs, places, probes = [], [], []

    def attention(
        q: Tensor, k: Tensor, v: Tensor, scale: float, alibi_slopes: Tensor | None
    ) -> Tensor:
        probe: dict[str, Tensor] = {}
        probes.append(probe)
        q = strided_view(q) if problem.strided_q else q
        run = partial(candidate, q, k, v, scale, alibi_slopes, probe=probe)
        return checked(run, tensors_of(q=q, k=k, v=v, alibi_slopes=alibi_slopes))

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


def run_decode(problem: DecodeProblem, candidate: Candidate, cached: bool) -> dict[str, Tensor]:
    """One query per sequence. Without a cache, the earlier queries are there too, all zero."""
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
        probe: dict[str, Tensor] = {}
        probes.append(probe)
        slopes = inputs.alibi_slopes
        run = partial(candidate, q, k, v, inputs.scale, slopes, probe=probe)
        outs.append(checked(run, tensors_of(q=q, k=k, v=v, alibi_slopes=slopes))[-1])
    # Without a cache, intermediates also cover every older query.
    given = collected(scores_shape(problem), [*enumerate(probes)] if cached else [])
    return {**given, "out": torch.stack(outs)}


def scores_shape(problem: DecodeProblem) -> tuple[int, int, int]:
    return len(problem.seq_lens), problem.num_heads, max(problem.seq_lens)


def run_paged(problem: DecodeProblem, backend: Backend, sizes: dict[str, int]) -> dict[str, Tensor]:
    """One decode step for the whole batch, over a cache in blocks."""
    step = problem.paged(backend.layout)
    found = probed(backend, step, sizes)
    out = found["out"]
    if problem.called_twice:
        kept = out.clone()
        probed(backend, replace(step, q=-step.q), sizes)
        if not same_numbers(out, kept):
            raise AnswerError("the next call changed this result; each must return a new tensor")
    per_head = {name: found[name] for name in PER_HEAD if name in found}
    return {**collected(scores_shape(problem), [(..., found)]), **per_head, "out": out}


def probed(backend: Backend, step: DecodeStep, sizes: dict[str, int]) -> dict[str, Tensor]:
    """The output and the intermediates of a step; AnswerError as `checked`."""
    found: dict[str, Tensor] = {}

    def run() -> Tensor:
        found.update(backend.prepare(step, **sizes).probe())
        return found["out"]

    checked(run, tensors_of(**vars(step)))
    return found
