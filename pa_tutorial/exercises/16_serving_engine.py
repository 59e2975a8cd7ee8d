"""Exercises of notebook 16: who may start, the batch of a step, when to stop."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import torch
from torch import Tensor

from pa_tutorial.checks.running import Trial
from pa_tutorial.exercises.drawing import asked, redrawn
from pa_tutorial.exercises.exercise import Exercise
from pa_tutorial.exercises.serving_engine_grading import other_blocks, other_request, other_tokens
from pa_tutorial.paging.allocator import Admission
from pa_tutorial.walk.calls import AnswerError, require_written

NOTEBOOK = "16_serving_engine"


# 1. ---------------------------------------------------------------------------------------------


def can_schedule(
    prompt_len: int,
    max_tokens: int,
    block_size: int,
    num_usable: int,
    num_free: int,
    watermark: int,
) -> Admission:
    """Whether a new request can start: Admission.NOW, Admission.LATER or Admission.NEVER.

    It starts if its whole prompt finds blocks, and `watermark` blocks stay free for those that
    run. It never starts if the pool could not hold it to its end, even alone, with `watermark`
    blocks left over. The last generated token is never fed back to the model: it needs no slot.

    num_usable  blocks of the pool that can be given out
    num_free    how many of them nobody holds now
    """
    # 1. how many tokens have K and V at the very end? How many blocks are that?
    # 2. NEVER: compare with num_usable - watermark
    # 3. how many blocks does the prompt need now? Compare with num_free - watermark
    ### BEGIN SOLUTION
    longest = prompt_len + max_tokens - 1
    if -(-longest // block_size) > num_usable - watermark:
        return Admission.NEVER
    if -(-prompt_len // block_size) > num_free - watermark:
        return Admission.LATER
    return Admission.NOW
    ### END SOLUTION


_BLOCKS = "Blocks are compared with blocks; a block that is not full counts as one."
_LAST = "The last generated token has no K and V in the cache."
_WATERMARK = "So many blocks must be left over, in both questions."
_ORDER = "What can never run must not wait: ask for NEVER first."
ADMISSION_CASES = (
    # name, what it isolates, what its failure means,
    # (prompt_len, max_tokens, block_size, num_usable, num_free, watermark), what must come out
    ("fits", "plenty of room", _BLOCKS, (10, 6, 4, 20, 20, 0), "now"),
    ("exactly", "as many free blocks as the prompt needs", _BLOCKS, (12, 1, 4, 20, 3, 0), "now"),
    ("one_too_few", "one block less", _BLOCKS, (12, 1, 4, 20, 2, 0), "later"),
    ("tail", "one token more than full blocks", _BLOCKS, (13, 1, 4, 20, 3, 0), "later"),
    ("tokens_and_blocks", "more tokens than blocks", _BLOCKS, (64, 1, 16, 5, 5, 0), "now"),
    ("too_long", "a prompt longer than the pool", _ORDER, (21, 1, 4, 5, 5, 0), "never"),
    ("too_long_and_full", "the same, while the pool is full", _ORDER, (21, 1, 4, 5, 0, 0), "never"),
    ("grows_too_long", "fits now, and not at its end", _ORDER, (12, 10, 4, 5, 5, 0), "never"),
    ("last_token", "the last token needs no slot", _LAST, (12, 9, 4, 5, 5, 0), "now"),
    ("watermark_later", "room, but not beside the watermark", _WATERMARK, (12, 1, 4, 20, 4, 2),
     "later"),
    ("watermark_now", "exactly beside the watermark", _WATERMARK, (12, 1, 4, 20, 5, 2), "now"),
    ("watermark_never", "only the whole pool would do", _WATERMARK, (20, 1, 4, 5, 5, 1), "never"),
)  # fmt: skip


def can_schedule_trials(draw: int = 0) -> list[Trial]:
    def run(questions: list[tuple], function: Callable | None) -> dict[str, Tensor]:
        answers = []
        for sizes, _ in questions:
            answer = require_written((can_schedule if function is None else function)(*sizes))
            if not isinstance(answer, Admission):
                raise AnswerError(f"it returned {answer!r:.60}; it must return NOW, LATER or NEVER")
            answers.append(answer)
        return numbers(answers)

    def numbers(admissions: Sequence[Admission]) -> dict[str, Tensor]:
        places = [list(Admission).index(admission) for admission in admissions]
        return {"out": torch.tensor(places, dtype=torch.float32)}

    return [
        Trial(
            name=name,
            isolates=isolates,
            meaning=meaning,
            run=partial(run, questions),
            references={"by hand": partial(numbers, [Admission(word) for _, word in questions])},
            bounds={"out": 0.0},
            axes=("0 now, 1 later, 2 never: question" if draw else "now 0|later 1|never 2",),
        )
        for name, isolates, meaning, questions in asked(ADMISSION_CASES, draw, {}, other_request)
    ]


ADMISSION = Exercise(
    notebook=NOTEBOOK,
    text="""\
Let a request in: now, later, or never. Without the prefix cache, and without looking at the number
of running sequences. (In the engine, `admit` says never, and `can_schedule` says now or later.)""",
    solution=can_schedule,
    trials=can_schedule_trials,
)


# 2. ---------------------------------------------------------------------------------------------


def make_batch(
    sequences: Sequence[tuple[list[int], int, int, list[int]]], block_size: int
) -> dict[str, Tensor]:
    """The tensors of a step.

    sequences  for each: token_ids (prompt and generated), how many tokens have K and V already,
               how many more are computed now, and its block table
    returns    input_ids, positions, slot_mapping  [num_tokens] int64, of the tokens that are
               computed, the sequences one after the other
               block_tables  [num_seqs, longest table] int32, padded with 0
               seq_lens      [num_seqs] int32, tokens with K and V after this step
               last_rows     [num_chosen] int64, for each sequence whose last token is computed:
                             the row of that token in input_ids
    """
    # 1. which positions of each sequence are computed?
    # 2. the slot of position p: block_table[p // block_size], and where in this block?
    # 3. a next token is chosen only when all tokens of the sequence are computed
    # 4. pad the block tables with 0 to one width
    ### BEGIN SOLUTION
    input_ids, positions, slots, seq_lens, last_rows = [], [], [], [], []
    for token_ids, num_computed, num_new, table in sequences:
        end = num_computed + num_new
        for p in range(num_computed, end):
            input_ids.append(token_ids[p])
            positions.append(p)
            slots.append(table[p // block_size] * block_size + p % block_size)
        seq_lens.append(end)
        if end == len(token_ids):
            last_rows.append(len(input_ids) - 1)
    tables = [table for _, _, _, table in sequences]
    width = max(map(len, tables))
    return {
        "input_ids": torch.tensor(input_ids),
        "positions": torch.tensor(positions),
        "slot_mapping": torch.tensor(slots),
        "block_tables": torch.tensor(
            [table + [0] * (width - len(table)) for table in tables], dtype=torch.int32
        ),
        "seq_lens": torch.tensor(seq_lens, dtype=torch.int32),
        "last_rows": torch.tensor(last_rows, dtype=torch.int64),
    }
    ### END SOLUTION


BATCH_DTYPES = {
    "input_ids": torch.int64,
    "positions": torch.int64,
    "slot_mapping": torch.int64,
    "block_tables": torch.int32,
    "seq_lens": torch.int32,
    "last_rows": torch.int64,
}
_NEW = "Only what is new is computed: positions num_computed to num_computed + num_new - 1."
_SLOT = "slot = block number * block_size + offset, with the sequence's own block table."
_CHOOSE = "In the middle of a prompt there is no next token to choose."
_PAD = "Every row has the width of the longest table; 0 is the null block."
BATCH_CASES = (
    # name, what it isolates, what its failure means,
    # (sizes (tokens, computed, new) of each sequence, their block tables, block_size)
    ("a_prompt", "one prompt, computed at once", _SLOT, (((7, 0, 7),), ([5, 2],), 4)),
    ("a_decode", "one generated token", _NEW, (((10, 9, 1),), ([3, 6, 1],), 4)),
    ("first_chunk", "the first part of a prompt", _CHOOSE, (((11, 0, 5),), ([4, 7],), 4)),
    ("middle_chunk", "a part in the middle, across blocks", _NEW,
     (((20, 6, 7),), ([9, 2, 5, 1],), 4)),
    ("last_chunk", "the last part of a prompt", _CHOOSE, (((11, 5, 6),), ([4, 7, 2],), 4)),
    ("mixed", "decode, prefill and a chunk in one step", _CHOOSE,
     (((9, 8, 1), (6, 0, 6), (15, 4, 5)), ([2, 8, 3], [7, 1], [6, 4, 5]), 4)),
    ("all_decode", "three generated tokens", _PAD,
     (((5, 4, 1), (17, 16, 1), (8, 7, 1)), ([3, 1], [9, 2, 6, 5, 8], [4, 7]), 4)),
    ("blocks_of_16", "another block size", _SLOT,
     (((33, 0, 33), (16, 15, 1)), ([4, 1, 7], [6]), 16)),
    ("shared_block", "two tables name one block", _PAD,
     (((10, 9, 1), (12, 8, 4)), ([2, 5, 3], [2, 5, 7]), 4)),
    ("nothing_to_choose", "chunks only", _CHOOSE, (((30, 4, 4), (30, 0, 4)), ([1, 2], [3]), 4)),
)  # fmt: skip
TOKENS_APART = 100  # the first tokens of two sequences, in the notebook


def sequences_of(
    sizes: Sequence[tuple[int, int, int]], tables: Sequence[list[int]], apart: int
) -> list[tuple]:
    """Tokens that say where they stand: apart * (sequence + 1) + position."""
    return [
        ([apart * (index + 1) + p for p in range(length)], computed, new, list(table))
        for index, ((length, computed, new), table) in enumerate(zip(sizes, tables, strict=True))
    ]


def batch_by_hand(
    sizes: Sequence, tables: Sequence, block_size: int, apart: int
) -> dict[str, list]:
    """Token by token, from the definition, without any of the code above."""
    rows = [
        (index, p)
        for index, (_, computed, new) in enumerate(sizes)
        for p in range(computed, computed + new)
    ]
    places = [(*divmod(p, block_size), index) for index, p in rows]
    width = max(len(table) for table in tables)
    return {
        "input_ids": [apart * (index + 1) + p for index, p in rows],
        "positions": [p for _, p in rows],
        "slot_mapping": [tables[index][block] * block_size + o for block, o, index in places],
        "block_tables": [
            [table[i] if i < len(table) else 0 for i in range(width)] for table in tables
        ],
        "seq_lens": [computed + new for _, computed, new in sizes],
        "last_rows": [row for row, (index, p) in enumerate(rows) if p == sizes[index][0] - 1],
    }


def make_batch_trials(draw: int = 0) -> list[Trial]:
    """Each tensor is a quantity of its own; `out` is slot_mapping."""

    def run(arguments: tuple, function: Callable | None) -> dict[str, Tensor]:
        sizes, tables, block_size, apart = arguments
        answer = make_batch if function is None else function
        result = require_written(answer(sequences_of(sizes, tables, apart), block_size))
        return quantities(require_batch(result, batch_by_hand(*arguments)))

    def expected(arguments: tuple) -> dict[str, Tensor]:
        return quantities(
            {name: torch.tensor(values) for name, values in batch_by_hand(*arguments).items()}
        )

    cases = [(*words, (*arguments, TOKENS_APART)) for *words, arguments in BATCH_CASES]
    return [
        Trial(
            name=name,
            isolates=isolates,
            meaning=meaning,
            run=partial(run, arguments),
            references={"token by token": partial(expected, arguments)},
            bounds=dict.fromkeys(("out", *BATCH_DTYPES), 0.0),
            axes=("token",),
        )
        for name, isolates, meaning, arguments in redrawn(cases, draw, other_blocks)
    ]


def quantities(batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """As numbers that can be compared; all in one row, for the table shows one quantity."""
    return {"out": torch.cat([batch[name].flatten().float() for name in BATCH_DTYPES])}


def require_batch(result: object, expected: Mapping[str, list]) -> dict[str, Tensor]:
    """The answer, if it has every tensor in its dtype and shape; a message for its author else."""
    if not isinstance(result, dict) or set(result) != set(BATCH_DTYPES):
        shown = ", ".join(map(str, result)) if isinstance(result, dict) else f"{result!r:.60}"
        raise AnswerError(
            f"it returned {shown}; it must return a dict of {', '.join(BATCH_DTYPES)}"
        )
    for name, dtype in BATCH_DTYPES.items():
        tensor, shape = result[name], list(torch.tensor(expected[name]).shape)
        if not isinstance(tensor, Tensor) or tensor.dtype != dtype or list(tensor.shape) != shape:
            what = (
                f"{list(tensor.shape)} {tensor.dtype}"
                if isinstance(tensor, Tensor)
                else f"a {type(tensor).__name__}"
            )
            raise AnswerError(f"{name} is {what}; it must be {shape} {dtype}")
        wrong = (tensor != torch.tensor(expected[name])).nonzero()[:1].tolist()
        for place in wrong:
            index = tuple(place)
            raise AnswerError(
                f"{name}{place} is {tensor[index].item()}; "
                f"it must be {torch.tensor(expected[name])[index].item()}"
            )
    return result


BATCH = Exercise(
    notebook=NOTEBOOK,
    text="""\
Build the batch of a step, from plain lists. Here the order of the sequences stays as it is.""",
    solution=make_batch,
    trials=make_batch_trials,
)


# 3. ---------------------------------------------------------------------------------------------


def finish_reason(
    generated: Sequence[int],
    max_tokens: int,
    stop_tokens: Sequence[int],
    eos_tokens: Sequence[int],
    ignore_eos: bool,
) -> str:
    """Whether a sequence ends after its newest token: "stop", "length", or "running": it goes on.

    generated    the generated tokens, the newest at the end; the prompt is not among them
    stop_tokens  end the sequence always
    eos_tokens   the model's own end tokens: they end it unless ignore_eos
    max_tokens   so many generated tokens, and no more

    If the newest token ends the sequence for both reasons, the reason is "stop".
    """
    # 1. the newest token: is it among those that end the sequence?
    # 2. only then: is the sequence as long as it may become?
    ### BEGIN SOLUTION
    ends = [*stop_tokens] if ignore_eos else [*stop_tokens, *eos_tokens]
    if generated[-1] in ends:
        return "stop"
    if len(generated) == max_tokens:
        return "length"
    return "running"
    ### END SOLUTION


REASONS = ("running", "stop", "length")
_NEWEST = "Only the newest token decides."
_EOS = "ignore_eos is about the model's own end tokens, not about stop_tokens."
_LENGTH = "The sequence may have max_tokens tokens, that many exactly."
_BOTH = "A stop token in the last place is still a stop."
STOP_CASES = (
    # name, what it isolates, what its failure means, the arguments, what must come out
    ("goes_on", "nothing special", _NEWEST, ([5, 8], 10, (3,), (0,), False), "running"),
    ("first_token", "one token, more allowed", _LENGTH, ([5], 2, (3,), (0,), False), "running"),
    ("stop_token", "the newest is a stop token", _NEWEST,
     ([5, 3], 10, (3, 4), (0,), False), "stop"),
    ("second_stop_token", "another one of several", _NEWEST,
     ([5, 4], 10, (3, 4), (), False), "stop"),
    ("end_of_model", "the model's own end", _EOS, ([5, 0], 10, (), (0,), False), "stop"),
    ("ignored_end", "ignored", _EOS, ([5, 0], 10, (), (0,), True), "running"),
    ("stop_not_ignored", "ignore_eos and a stop token", _EOS,
     ([5, 3], 10, (3,), (0,), True), "stop"),
    ("token_zero", "stop token 0", _EOS, ([5, 0], 10, (0,), (1,), True), "stop"),
    ("ignored_and_long", "ignored, in the last place", _EOS, ([5, 0], 2, (), (0,), True), "length"),
    ("earlier_stop", "a stop token that is not the newest, after a change of mind", _NEWEST,
     ([3, 5], 10, (3,), (0,), False), "running"),
    ("long_enough", "max_tokens reached", _LENGTH, ([5, 8, 9], 3, (3,), (0,), False), "length"),
    ("one_is_enough", "max_tokens 1", _LENGTH, ([5], 1, (3,), (0,), False), "length"),
    ("both", "a stop token in the last place", _BOTH, ([5, 8, 3], 3, (3,), (0,), False), "stop"),
)  # fmt: skip


def finish_reason_trials(draw: int = 0) -> list[Trial]:
    def run(questions: list[tuple], function: Callable | None) -> dict[str, Tensor]:
        answers = []
        for (generated, *rest), _ in questions:
            answer = (finish_reason if function is None else function)(list(generated), *rest)
            if require_written(answer) not in REASONS:
                raise AnswerError(f"it returned {answer!r:.60}; it must return one of {REASONS}")
            answers.append(answer)
        return numbers(answers)

    def numbers(reasons: Sequence[str]) -> dict[str, Tensor]:
        places = [REASONS.index(reason) for reason in reasons]
        return {"out": torch.tensor(places, dtype=torch.float32)}

    return [
        Trial(
            name=name,
            isolates=isolates,
            meaning=meaning,
            run=partial(run, questions),
            references={"by hand": partial(numbers, [reason for _, reason in questions])},
            bounds={"out": 0.0},
            axes=(
                "0 running, 1 stop, 2 length: question" if draw else "running 0|stop 1|length 2",
            ),
        )
        for name, isolates, meaning, questions in asked(STOP_CASES, draw, {}, other_tokens)
    ]


STOP = Exercise(
    notebook=NOTEBOOK,
    text="""\
The stop rule: it looks at a sequence each time it has got a token.""",
    solution=finish_reason,
    trials=finish_reason_trials,
)

EXERCISES = (ADMISSION, BATCH, STOP)
