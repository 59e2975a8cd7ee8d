"""The engine serves requests in steps, each of which generates tokens."""

from collections.abc import Callable
from collections.abc import Sequence as Several
from dataclasses import dataclass

import torch
from torch import Tensor

from pa_tutorial.arguments import require, require_type
from pa_tutorial.attention.backend import Backend
from pa_tutorial.attention.paged import online_backend
from pa_tutorial.engine.batch import build_batch
from pa_tutorial.engine.request import (
    DEFAULT_PARAMS,
    Request,
    SamplingParams,
    Sequence,
    as_token_ids,
)
from pa_tutorial.engine.runner import Model, Runner
from pa_tutorial.engine.sampling import choose_token
from pa_tutorial.engine.scheduler import Scheduler
from pa_tutorial.paging.pages import Pages

Chosen = list[tuple[int, str | None]]  # tokens, each with the reason if it ends its sample


class BadScores(ArithmeticError):
    """The model returned scores from which no token can be chosen."""


@dataclass(frozen=True)
class StepStatistics:
    """What one step did. Blocks are counted after the step.

    num_running, num_waiting  sequences after the step
    num_prefill, num_decode   planned tokens of sequences with several tokens in this step, and of
                              those with one; tokens of a failed step count too
    blocks_used               blocks that sequences use
    blocks_cached             unused blocks that are still in the prefix cache
    hit_rate                  fraction of tokens found in the prefix cache so far; a sequence's
                              tokens count each time that it is admitted
    num_preemptions           preemptions so far
    error                     what made the step fail; None if it didn't
    """

    step: int
    num_running: int
    num_waiting: int
    num_prefill: int
    num_decode: int
    blocks_used: int
    blocks_cached: int
    hit_rate: float
    num_preemptions: int
    error: str | None = None


class Engine:
    """Serves requests over one model and one pool of blocks.

        engine = Engine(model, BlockPages(num_blocks=512, block_size=16))
        request = engine.add(prompt, SamplingParams(max_tokens=20))
        while not request.is_finished:
            engine.step()

    model           TinyLM, Llama, or any Model
    pages           the memory manager, without sequences: BlockPages, or another of its protocol
    backend         decodes: cpu_backend of kernels/cpu is the fastest
    make_runner     called with model, backend, num_blocks, block_size and kv_cache_dtype
    kv_cache_dtype  None: the cache has the dtype of the model; "fp8" (float8_e4m3fn) or "fp8_e5m2":
                    8 bits per number, for a backend that reads them
    limits          limits of the Scheduler: token_budget, chunk_size, max_num_seqs

    Raises TypeError or ValueError for impossible sizes, a backend that can't run here, or a
    kv_cache_dtype that is unknown or that the backend doesn't read.
    """

    def __init__(
        self,
        model: Model,
        pages: Pages,
        backend: Backend = online_backend,
        make_runner: Callable[..., Runner] = Runner,
        kv_cache_dtype: str | None = None,
        **limits: int | None,
    ) -> None:
        require_type(hasattr(model, "config"), "model", model, "a Model, such as TinyLM")
        self.model = model
        self.pages = pages
        self.scheduler = Scheduler(pages, **limits)
        sizes = (pages.num_blocks, pages.block_size)
        self.runner = make_runner(model, backend, *sizes, kv_cache_dtype)
        self.num_requests = 0
        self.statistics: list[StepStatistics] = []

    @property
    def is_idle(self) -> bool:
        return self.scheduler.is_idle

    def add(self, prompt: Several[int], params: SamplingParams = DEFAULT_PARAMS) -> Request:
        """Add a request to the queue; the next step may start it.

        prompt  token ids

        Raises TypeError or ValueError, without changing anything, for an empty prompt, a token
        outside the vocabulary, invalid parameters, more tokens than the model or the pool can
        hold, and more samples than may run at the same time.
        """
        config = self.model.config
        require(isinstance(params, SamplingParams), "params", params, "SamplingParams")
        prompt = as_token_ids("prompt", prompt, config.vocab_size)
        require(len(prompt) > 0, "prompt", prompt, "at least one token")
        params = params.checked(config.vocab_size)
        longest = len(prompt) + params.max_tokens - 1  # the last one is never fed back
        allowed = f"at most {config.max_len}, the positions of the model"
        require(longest <= config.max_len, "len(prompt) + max_tokens - 1", longest, allowed)
        request = Request(self.num_requests, prompt, params)
        self.scheduler.admit(request)
        self.num_requests += 1
        return request

    def cancel(self, request: Request) -> None:
        """End a request now, and keep its tokens. A finished request doesn't change."""
        require_type(isinstance(request, Request), "request", request, "a Request")
        self._end(request, "cancelled")

    def step(self) -> StepStatistics:
        """Run one step: schedule, compute, choose tokens.

        A step that fails is undone: its sequences keep their tokens and give up their blocks.
        Each is then tried again alone, before any other sequence computes. A sequence that also
        fails alone ends with the error in request.error; the others continue.
        """
        scheduler = self.scheduler
        try:
            plan = scheduler.schedule()
            error = self._compute(plan) if plan else None
        except Exception as failure:
            sequences = self._in_this_step()
            if not sequences:  # the scheduler itself failed
                raise
            error = failure
            self._retry_alone(sequences, failure)
        except BaseException:  # an interrupt, nearly always in the model: no sequence's fault
            scheduler.suspect(self._in_this_step())
            raise
        self.statistics.append(self._count(error))
        return self.statistics[-1]

    def _compute(self, plan: list) -> Exception | None:
        """Run the model, and choose the next token of every sequence that is due one."""
        batch = build_batch(plan, self.pages)
        scores = self.runner.run(batch)
        largest, likeliest = scores.max(dim=-1)
        # The largest score is NaN if any score is, and infinite if none can be chosen.
        good = torch.isfinite(largest).tolist()
        # Choose everything before changing anything, so that a failure changes nothing.
        rows = zip(batch.sampled, scores, likeliest.tolist(), good, strict=True)
        self._advance([(row[0], self._choose(*row[:3])) for row in rows if row[3]])
        bad = [sequence for row, sequence in enumerate(batch.sampled) if not good[row]]
        if not bad:
            return None
        error = BadScores("the model returned scores without a largest one: NaN or infinite")
        self._retry_alone(bad, error)
        return error

    def _advance(self, choices: list[tuple[Sequence, Chosen]]) -> None:
        """Append the chosen tokens, and finish the sequences that have ended."""
        for sequence, chosen in choices:
            self.scheduler.clear(sequence)
            samples = [sequence, *self.scheduler.fork(sequence, len(chosen) - 1)]
            for sample, (token, reason) in zip(samples, chosen, strict=True):
                sample.token_ids.append(token)
                if reason:
                    self.scheduler.finish(sample, reason)

    def _choose(self, sequence: Sequence, scores: Tensor, likeliest: int) -> Chosen:
        """The next token of a sequence, and why it ends there; right after the prompt, the first
        token of every sample."""
        request, num_generated = sequence.request, len(sequence.generated)
        params = request.params
        to_fork = len(request.samples) < params.num_samples
        wanted = range(params.num_samples) if to_fork else [sequence.index]
        if params.temperature == 0:
            tokens = [likeliest] * len(wanted)
        else:
            tokens = [choose_token(scores, params, index, num_generated) for index in wanted]
        return [(token, self._finish_reason(token, num_generated + 1, params)) for token in tokens]

    def _finish_reason(self, token: int, num_generated: int, params: SamplingParams) -> str | None:
        ends = () if params.ignore_eos else getattr(self.model.config, "eos_tokens", ())
        if token in params.stop_tokens or token in ends:
            return "stop"
        return "length" if num_generated == params.max_tokens else None

    def _in_this_step(self) -> list[Sequence]:
        return [sequence for sequence in self.scheduler.touched if sequence.num_in_pages]

    def _retry_alone(self, sequences: list[Sequence], error: Exception) -> None:
        for sequence in self.scheduler.suspect(sequences):
            sequence.request.error = error
            self._end(sequence.request, "error")

    def _end(self, request: Request, reason: str) -> None:
        for sample in request.samples:
            if sample.finish_reason is None:
                self.scheduler.finish(sample, reason)

    def _count(self, error: Exception | None) -> StepStatistics:
        num_tokens = [len(scheduled.slots) for scheduled in self.scheduler.plan]
        return StepStatistics(
            step=len(self.statistics),
            num_running=len(self.scheduler.running),
            num_waiting=len(self.scheduler.waiting) + len(self.scheduler.suspects),
            num_prefill=sum(number for number in num_tokens if number > 1),
            num_decode=sum(number == 1 for number in num_tokens),
            blocks_used=self.pages.num_blocks - 1 - self.pages.num_free,
            blocks_cached=self.pages.num_cached,
            hit_rate=self.scheduler.num_cached / max(1, self.scheduler.num_looked_up),
            num_preemptions=self.scheduler.num_preemptions,
            error=None if error is None else f"{type(error).__name__}: {error}",
        )
