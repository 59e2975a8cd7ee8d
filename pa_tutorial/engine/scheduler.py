"""Choose what the next step computes: first come, first served, within token budget and pool."""

from bisect import insort
from dataclasses import dataclass
from operator import attrgetter

from pa_tutorial.arguments import require, require_type, whole_number
from pa_tutorial.engine.request import Request, Sequence
from pa_tutorial.paging.errors import OutOfBlocks
from pa_tutorial.paging.pages import Admission, Appended, Pages
from pa_tutorial.tracebacks import ShortInNotebooks

by_age = attrgetter("age")


class StuckError(ShortInNotebooks, RuntimeError):
    """Sequences wait, and none can ever compute: the pages contradict themselves."""


@dataclass(frozen=True)
class Scheduled:
    """What one sequence computes in a step; it already has blocks for these tokens.

    first    position of the first token to compute
    slots    where K and V of each token are written; -1 if they are cached already
    copies   (source, destination) blocks to copy before anything is written
    is_last  whether they include the sequence's last token, so that a next one is chosen
    """

    sequence: Sequence
    first: int
    slots: list[int]
    copies: list[tuple[int, int]]
    is_last: bool


class Scheduler:
    """Continuous batching: in every step, sequences that fit may start and finished ones leave.

    pages         the blocks; each sequence is known there by its age
    token_budget  the most tokens that one step computes; prefill and decode share it
    chunk_size    the most tokens of one sequence per step: a longer prompt takes several steps
                  (chunked prefill), so that others can continue meanwhile
    max_num_seqs  the most sequences that run at the same time

    A sequence is in one of three lists, each ordered by age:
        waiting   has no blocks
        running   has blocks, and computes in every step as far as the budget allows
        suspects  was in a step that failed, has no blocks, and is tried again alone

    No request starves. Without suspects, the oldest sequence always has a place in the step. If
    it needs a block and none is free, the youngest running sequence gives up its blocks and waits
    (preemption; its K and V are recomputed later). Every sequence fits into the pool alone,
    otherwise `admit` refuses it.
    While there are suspects, the oldest of them computes alone until it has its next token or
    fails again; all others pause.

    Source: vLLM, Scheduler in vllm/core/scheduler.py, and for one list of prefill and decode
    vllm/v1/core/sched/scheduler.py.
    """

    def __init__(
        self,
        pages: Pages,
        token_budget: int = 256,
        chunk_size: int | None = None,
        max_num_seqs: int = 64,
    ) -> None:
        chunk_size = token_budget if chunk_size is None else chunk_size
        require_type(isinstance(pages, Pages), "pages", pages, "a Pages, such as BlockPages")
        self.pages = pages
        self.token_budget = whole_number("token_budget", token_budget, least=1)
        self.chunk_size = whole_number("chunk_size", chunk_size, least=1)
        self.max_num_seqs = whole_number("max_num_seqs", max_num_seqs, least=1)
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []
        self.suspects: list[Sequence] = []
        self.plan: list[Scheduled] = []
        self.touched: list[Sequence] = []  # their blocks have changed in this step, or may have
        self.is_stuck = False  # whether this step computes nothing though sequences wait
        self.num_preemptions = 0
        self.num_looked_up = 0  # tokens of admitted sequences, and how many were in the cache
        self.num_cached = 0

    @property
    def is_idle(self) -> bool:
        return not (self.waiting or self.running or self.suspects)

    def admit(self, request: Request) -> None:
        """Add a new request to the queue. ValueError if it could never run."""
        require_type(isinstance(request, Request), "request", request, "a Request")
        num_samples = request.params.num_samples
        allowed = f"at most {self.max_num_seqs}, the sequences that may run at the same time"
        require(num_samples <= self.max_num_seqs, "num_samples", num_samples, allowed)
        # The last generated token is never fed back, so it needs no slot.
        longest = len(request.prompt) + request.params.max_tokens - 1
        places = self.pages.num_usable * self.pages.block_size
        allowed = f"at most {places}, the slots that the pool can give to one sequence"
        require(longest <= places, "len(prompt) + max_tokens - 1", longest, allowed)
        request.samples.append(Sequence(request, 0, list(request.prompt)))
        insort(self.waiting, request.samples[0], key=by_age)

    def schedule(self) -> list[Scheduled]:
        """Choose what the next step computes, and allocate its blocks.

        The oldest sequences come first. If one needs a block and none is free, the youngest
        gives up its blocks. Afterwards, if no sequence was preempted, waiting sequences are
        admitted. While there are suspects, only the oldest of them computes.

        Raises TypeError or StuckError if the pages don't keep to their protocol.
        """
        self.plan, self.touched = [], []
        if self.suspects:
            self._give(self.suspects[0], self.token_budget)
            return self.plan
        budget, preemptions = self.token_budget, self.num_preemptions
        for sequence in list(self.running):
            if budget == 0 or sequence.num_in_pages == 0:  # preempted, and so are all younger ones
                break
            budget -= self._give(sequence, budget)
        while budget > 0 and self.waiting and self.num_preemptions == preemptions:
            sequence = self.waiting[0]
            if self.can_schedule(sequence) is not Admission.NOW:
                break  # no overtaking
            insort(self.running, self.waiting.pop(0), key=by_age)
            budget -= self._give(sequence, budget)
        self._require_progress()
        return self.plan

    def _require_progress(self) -> None:
        """Raises StuckError if two steps in a row compute nothing although sequences wait and none
        has blocks: they would wait for ever."""
        was_stuck = self.is_stuck
        self.is_stuck = bool(self.waiting and not self.plan and not self.running)
        if was_stuck and self.is_stuck:
            answer = self.pages.admit(self.waiting[0].token_ids)
            free = f"{self.pages.num_free} of {self.pages.num_usable} blocks are free"
            raise StuckError(
                f"no sequence runs and none can start: pages.admit says {answer} of the oldest, "
                f"which must be NOW by then, or pages.append has no blocks for it; {free}"
            )

    def can_schedule(self, sequence: Sequence) -> Admission:
        """Whether a waiting sequence can start, which needs blocks for all its tokens so far.

        Cached blocks that others use need not be allocated. Returns NOW or LATER, because `admit`
        has refused sequences that can never start.
        """
        places = sum(map(num_places, [*self.running, sequence]))
        if places > self.max_num_seqs:
            return Admission.LATER
        answer = self.pages.admit(sequence.token_ids)
        allowed = "an Admission: NOW, LATER or NEVER"
        require_type(isinstance(answer, Admission), "pages.admit(…)", answer, allowed)
        return answer

    def _give(self, sequence: Sequence, budget: int) -> int:
        """Schedule as many tokens of a sequence as the budget allows, and return how many."""
        self.touched.append(sequence)
        first, name = sequence.num_in_pages, sequence.age
        rest = sequence.token_ids[first:]
        # Tokens in the prefix cache cost blocks, but no budget.
        num_cached = self.pages.num_found(name, rest) if len(rest) > 1 else 0
        rest = rest[: num_cached + min(budget, self.chunk_size)]
        while True:
            try:
                appended = self.pages.append(name, rest)
                break
            except OutOfBlocks:
                # The youngest that has no part in this step yet.
                untouched = (s for s in reversed(self.running) if s not in self.touched)
                victim = next(untouched, sequence)
                self.preempt(victim)
                if victim is sequence:
                    return 0
        allowed = "an Appended, with copies and slots"
        require_type(isinstance(appended, Appended), "pages.append(…)", appended, allowed)
        sequence.num_in_pages += len(rest)
        if first == 0:
            self.num_looked_up += len(sequence.token_ids)
            self.num_cached += appended.num_cached
        self.plan.append(
            Scheduled(
                sequence=sequence,
                first=first + appended.num_cached,
                slots=appended.slots[appended.num_cached :],
                copies=appended.copies,
                is_last=sequence.num_in_pages == len(sequence.token_ids),
            )
        )
        return len(rest) - appended.num_cached

    def preempt(self, sequence: Sequence) -> None:
        """Free the blocks of a sequence. It keeps its tokens, and waits to recompute them."""
        self.num_preemptions += 1
        sequence.num_preemptions += 1
        self.remove(sequence)
        insort(self.waiting, sequence, key=by_age)

    def fork(self, sequence: Sequence, num_more: int) -> list[Sequence]:
        """More samples of the same request, sharing the blocks of its prompt."""
        samples = sequence.request.samples
        for _ in range(num_more):
            sample = Sequence(sequence.request, len(samples), sequence.token_ids.copy())
            self.pages.fork(sequence.age, sample.age)
            sample.num_in_pages = sequence.num_in_pages
            samples.append(sample)
            insort(self.running, sample, key=by_age)
        return samples[len(samples) - num_more :]

    def finish(self, sequence: Sequence, reason: str) -> None:
        """End a sequence and free its blocks."""
        sequence.finish_reason = reason
        self.remove(sequence)

    def clear(self, sequence: Sequence) -> None:
        """Let a suspect that got its next token alone run with the others again."""
        if sequence in self.suspects:
            self.suspects.remove(sequence)
            insort(self.running, sequence, key=by_age)

    def suspect(self, sequences: list[Sequence]) -> list[Sequence]:
        """Undo what these sequences did in a step that failed, and try each again alone.

        Their blocks lose their names in the prefix cache, because K and V in them may be wrong
        or were never written.
        returns  the sequences that were already alone: they have failed for good
        """
        alone = [sequence for sequence in sequences if sequence in self.suspects]
        for sequence in sequences:
            if sequence.num_in_pages:
                self.pages.forget(sequence.age)
            if sequence.finish_reason is None:
                self.remove(sequence)
                insort(self.suspects, sequence, key=by_age)
        return alone

    def remove(self, sequence: Sequence) -> None:
        """Remove a sequence from its list, and free its blocks."""
        for group in (self.waiting, self.running, self.suspects):
            if sequence in group:
                group.remove(sequence)
        if sequence.num_in_pages:
            self.pages.free(sequence.age)
            sequence.num_in_pages = 0


def num_places(sequence: Sequence) -> int:
    """The sequence, and the samples that will be forked from it."""
    request = sequence.request
    return 1 + request.params.num_samples - len(request.samples)
