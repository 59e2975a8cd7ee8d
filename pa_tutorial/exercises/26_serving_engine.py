"""Exercises of notebook 26: one step of the scheduler, in three functions."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from pa_tutorial.checks.calls import AnswerError, Function, require_written
from pa_tutorial.engine.request import Request, SamplingParams
from pa_tutorial.engine.request import Sequence as EngineSequence
from pa_tutorial.engine.scheduler import Scheduler
from pa_tutorial.exercises.exercise import Exercise
from pa_tutorial.exercises.grading import called, graded, whole_numbers
from pa_tutorial.exercises.random_inputs import seeded
from pa_tutorial.paging.allocator import Admission
from pa_tutorial.paging.block_pages import BlockPages


# 1. ---------------------------------------------------------------------------------------------
def can_schedule(
    prompt_len: int, max_tokens: int, block_size: int, num_usable: int, num_free: int
) -> Admission:
    """Whether a new sequence can start: Admission.NOW, Admission.LATER or Admission.NEVER.

    num_usable  how many blocks the pool has
    num_free    how many of them no sequence holds now
    """
    # NEVER if the full answer won't fit, even alone; the last token needs no slot
    # NOW if there are enough free blocks for its prompt
    ### BEGIN SOLUTION
    if -(-(prompt_len + max_tokens - 1) // block_size) > num_usable:
        return Admission.NEVER
    return Admission.LATER if -(-prompt_len // block_size) > num_free else Admission.NOW
    ### END SOLUTION


_BLOCKS = "Compare blocks with blocks, rounded up; exactly as many as it needs are enough."
_POOL = "It may fill the whole pool, and its answer goes on in the prompt's last block."
_END = "Round up the blocks of prompt and answer together, and compare them with the whole pool."
_PROMPT = "To start, only the prompt needs free blocks; others may end before it grows."
_LAST = "The last generated token has no K and V in the cache."
_ORDER = "A sequence that can never run must not wait: check for NEVER first."
ANSWERS = "0 now, 1 later, 2 never: question"
_NOW, _LATER, _NEVER = Admission.NOW, Admission.LATER, Admission.NEVER
ADMISSION_CASES = (
    # name, what it isolates, what its failure means,
    # prompt_len, max_tokens, block_size, num_usable, num_free; the answer, by hand
    ("fits", "it just fits into the whole pool", _POOL, 10, 6, 4, 4, 4, _NOW),
    ("exactly", "as many free blocks as the prompt needs", _BLOCKS, 12, 1, 4, 20, 3, _NOW),
    ("one_too_few", "one block fewer", _BLOCKS, 12, 1, 4, 20, 2, _LATER),
    ("tail", "one token more than full blocks", _BLOCKS, 13, 1, 4, 20, 3, _LATER),
    ("tokens_and_blocks", "more tokens than blocks", _BLOCKS, 64, 1, 16, 5, 5, _NOW),
    ("too_long_and_full", "too long, while the pool is full", _ORDER, 24, 1, 4, 5, 0, _NEVER),
    ("grows_too_long", "fits now, but not at its end", _END, 12, 10, 4, 5, 5, _NEVER),
    ("last_token", "the last token needs no slot", _LAST, 12, 9, 4, 5, 5, _NOW),
    ("grows_later", "room for the prompt, not yet for the answer", _PROMPT, 4, 9, 4, 8, 1, _NOW),
)


def longer_blocks(first: int, draw: int) -> list[int]:
    """Factors for the block size: one question, or three in another draw."""
    return seeded(first, draw).integers(2, 50, size=3).tolist() if draw else [1]


def in_longer_blocks(num_tokens: int, block_size: int, times: int) -> int:
    """The same blocks with times as many tokens; one token in the last block stays one."""
    full, rest = divmod(num_tokens, block_size)
    return times * full * block_size + (1 if rest == 1 else times * rest)


def admission_run(answer: Function, prompt_len: int, max_tokens: int, *case: Any) -> Tensor:
    (block_size, *pool, _by_hand, draw), answers = case, []
    lens = prompt_len, prompt_len + max_tokens - 1
    for times in longer_blocks(prompt_len, draw):
        prompt, end = (in_longer_blocks(n, block_size, times) for n in lens)
        answers.append(require_written(answer(prompt, end - prompt + 1, times * block_size, *pool)))
        if not isinstance(answers[-1], Admission):
            found = f"{answers[-1]!r:.60}"
            raise AnswerError(f"it returned {found}; it must return NOW, LATER or NEVER")
    return as_numbers(answers)


def admission_by_hand(prompt_len: int, *case: Any) -> Tensor:
    *_, by_hand, draw = case
    return as_numbers([by_hand for _ in longer_blocks(prompt_len, draw)])


def as_numbers(answers: list[Admission]) -> Tensor:
    return torch.tensor([list(Admission).index(answer) for answer in answers])


# 2. ---------------------------------------------------------------------------------------------
def waiting_tokens(
    waiting: list[int], num_free: int, block_size: int, budget: int, chunk_size: int
) -> list[int]:
    """How many tokens each waiting sequence computes in a step: 0 for one that doesn't start.

    waiting           tokens per sequence, oldest first; none of them is computed yet
    num_free, budget  blocks and tokens that the running ones have left
    """
    # the oldest first: one starts if there is budget left, and free blocks for all its tokens
    # it takes only the blocks of its chunk; if one can't start, none behind it may
    ### BEGIN SOLUTION
    computes = [0] * len(waiting)
    for index, tokens in enumerate(waiting):
        if budget == 0 or -(-tokens // block_size) > num_free:
            break
        computes[index] = min(tokens, chunk_size, budget)
        num_free -= -(-computes[index] // block_size)
        budget -= computes[index]
    return computes
    ### END SOLUTION


_SHARE = "The sequences, oldest first, share the budget to its last token."
_CHUNK = "No sequence computes more than chunk_size tokens."
_DOOR = "A sequence starts if blocks for all its tokens are free, though it takes fewer at first."
_QUEUE = "If one can't start, none behind it may."
_TAKES = "Check the blocks of the whole prompt, subtract those of its chunk, and round up both."
WAITING_CASES: tuple[tuple, ...] = (
    # name, what it isolates, what its failure means,
    # waiting, num_free, block_size, budget, chunk_size
    ("chunk", "a long prompt starts", _CHUNK, [30], 20, 4, 16, 8),
    ("whole_prompt", "room for its chunk, not for its prompt", _DOOR, [16], 3, 4, 16, 8),
    ("two_start", "both fit", _DOOR, [8, 4], 3, 4, 16, 8),
    ("one_starts", "too few blocks are left for the second", _TAKES, [11, 5], 3, 4, 16, 6),
    ("chunks_count", "a chunk leaves blocks for the second", _TAKES, [12, 8], 3, 4, 16, 4),
    ("nobody_overtakes", "the third would fit", _QUEUE, [6, 16, 3], 5, 4, 20, 8),
    ("budget", "one token of the budget is left for the second", _SHARE, [6, 7, 3], 20, 4, 7, 8),
)  # fmt: skip


# 3. ---------------------------------------------------------------------------------------------
def running_tokens(
    running: list[tuple[int, int]],
    num_free: int,
    block_size: int,
    token_budget: int,
    chunk_size: int,
) -> list[int]:
    """How many tokens each running sequence computes in a step: 0 for none, -1 if it is preempted.

    running   (tokens, how many of them are already computed) per sequence, oldest first
    num_free  blocks that no sequence holds
    """
    # 1. each holds blocks for its computed tokens, the last perhaps not full
    # 2. the oldest first, unless it was preempted: how many tokens, and how many more blocks?
    # 3. while too few are free, preempt the youngest that still runs, perhaps this one itself
    ### BEGIN SOLUTION
    computes = [0] * len(running)
    alive, budget = len(running), token_budget
    for index, (tokens, computed) in enumerate(running):
        if index >= alive:
            break
        new = min(tokens - computed, chunk_size, budget)
        needed = -(-(computed + new) // block_size) - -(-computed // block_size)
        while needed > num_free and alive > index:
            alive -= 1
            computes[alive] = -1
            num_free += -(-running[alive][1] // block_size)
        if alive > index:
            computes[index] = new
            num_free, budget = num_free - needed, budget - new
    return computes
    ### END SOLUTION


_REST = "A sequence computes the tokens that it hasn't computed yet."
_GROW = "It needs only new blocks: those for its tokens after this step minus those it holds."
_YOUNGEST = (
    "Preempt the youngest that still runs, at last this one itself, and no more than needed."
)
_ENOUGH = (
    "Preempt until it has blocks for this step; a victim frees those of its computed tokens, "
    "the last perhaps not full."
)
_BOOKS = "All blocks of a victim become free, and those that a sequence takes don't stay free."
RUNNING_CASES: tuple[tuple, ...] = (
    # name, what it isolates, what its failure means,
    # running, num_free, block_size, token_budget, chunk_size
    ("decodes", "each has a token left", _REST, [(9, 8), (6, 5)], 5, 4, 16, 8),
    ("budget", "one token of the budget is left for the second", _SHARE,
     [(30, 8), (30, 4), (9, 8)], 20, 4, 9, 8),
    ("chunk", "a long prompt goes on", _CHUNK, [(9, 8), (30, 8)], 20, 4, 16, 6),
    ("in_its_block", "no block is free, and none is needed", _GROW, [(7, 6)], 0, 4, 16, 8),
    ("youngest", "a block is missing", _YOUNGEST, [(9, 8), (15, 14), (7, 6)], 0, 4, 16, 8),
    ("two_victims", "one victim is not enough", _ENOUGH,
     [(30, 8), (4, 3), (12, 2)], 0, 4, 16, 8),
    ("not_enough", "nor are all victims", _YOUNGEST, [(30, 4), (4, 3)], 0, 4, 16, 16),
    ("all_of_a_victim", "one victim frees two blocks", _BOOKS, [(5, 4), (5, 4), (9, 8)],
     0, 4, 16, 8),
    ("itself", "the youngest needs a block", _YOUNGEST, [(7, 6), (9, 8)], 0, 4, 16, 8),
    ("one_block_for_two", "the older one takes the last block", _BOOKS,
     [(9, 8), (5, 4)], 1, 4, 16, 8),
)  # fmt: skip


def package_scheduler(running: list, waiting: list[int], num_free: int, *sizes: int) -> Tensor:
    """The step of the package's scheduler from that state."""
    block_size, *most = sizes
    held = sum(-(-computed // block_size) for _, computed in running)
    pages = BlockPages(1 + held + num_free, block_size, prefix_caching=False)
    scheduler = Scheduler(pages, *most)
    sequences = []
    for number, tokens in enumerate([*(tokens for tokens, _ in running), *waiting]):
        request = Request(number, [0] * tokens, SamplingParams())
        sequences.append(EngineSequence(request, 0, request.prompt))
        request.samples.append(sequences[-1])
    for sequence, (_, computed) in zip(sequences, running, strict=False):
        pages.append(sequence.age, sequence.token_ids[:computed])
        sequence.num_in_pages = computed
    scheduler.running = sequences[: len(running)]
    scheduler.waiting = sequences[len(running) :]
    plan = {part.sequence: len(part.slots) for part in scheduler.schedule()}
    return torch.tensor([plan.get(s, -s.num_preemptions) for s in sequences])


def step_of_running(running: list, *sizes: int) -> Tensor:
    """The package's scheduler, without a waiting sequence."""
    return package_scheduler(running, [], *sizes)


def step_of_waiting(waiting: list[int], *sizes: int) -> Tensor:
    """The package's scheduler, without a running sequence."""
    return package_scheduler([], waiting, *sizes)


def step_run(answer: Function, sequences: list, *sizes: int) -> Tensor:
    return torch.tensor(whole_numbers(called(answer, sequences, *sizes), len(sequences)))


def longer_step(
    rng: np.random.Generator, _: str, sequences: list, num_free: int, *sizes: int
) -> tuple:
    """All tokens and the block size times a factor; the last token of the budget stays one."""
    times = int(rng.integers(2, 50))
    longer = (times * np.array(sequences)).tolist()
    block_size, token_budget, chunk_size = sizes
    sizes = times * block_size, times * (token_budget - 1) + 1, times * chunk_size
    return None, longer, num_free, *sizes


EXERCISES = (
    Exercise(
        solution=can_schedule,
        cases=graded(ADMISSION_CASES, admission_run, admission_by_hand, (ANSWERS,)),
        is_warm_up=True,
    ),
    Exercise(
        solution=waiting_tokens,
        cases=graded(WAITING_CASES, step_run, step_of_waiting, ("sequence",), longer_step),
    ),
    Exercise(
        solution=running_tokens,
        cases=graded(RUNNING_CASES, step_run, step_of_running, ("sequence",), longer_step),
    ),
)
