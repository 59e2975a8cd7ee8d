"""What a blank is tried on: its function in the kernel's file, on small decode steps.

The simplest step comes first, so that what is wrong everywhere is told about it. Some functions are
tried by themselves, too (function_cases.py).
"""

from collections.abc import Callable, Mapping
from functools import partial

import numpy as np
from torch import Tensor

from pa_tutorial.checks.calls import AnswerError
from pa_tutorial.checks.cases import CASES
from pa_tutorial.checks.comparing import bounds_of, compare
from pa_tutorial.checks.problem import DecodeProblem
from pa_tutorial.checks.running import Trial
from pa_tutorial.exercises import function_cases as by_itself
from pa_tutorial.exercises.function_cases import MOST_TURNS, require_written
from pa_tutorial.exercises.ours import BACKENDS
from pa_tutorial.exercises.random_inputs import reseeded
from pa_tutorial.exercises.together import Functions, with_answer
from pa_tutorial.kernels.cuda_launch import CudaLaunch, PagedLaunch, PartitionedLaunch
from pa_tutorial.kernels.intermediates import MARKS, NAMES, SCORES_DONE, SUM_DONE, intermediates
from simt import Report, Trace

PARTITION_SIZE = 32
SHAPES = ("worked_example", "alibi_block_size_8", "gqa", "bfloat16", "strided_q_float16")
EDGES = (
    *("head_size_120_float16", "very_deep_negative_scores", "drifting_scores"),
    *("stale_slots_far_above", "more_vecs_than_groups"),
)
OF_FILE = {
    "naive": (*SHAPES, "one_token", *EDGES, "drifting_over_lanes_and_warps"),
    "v1": (*SHAPES, *EDGES, "shuffled_blocks"),  # more tokens than threads
    "v1_vector": (*SHAPES, *EDGES, "shuffled_blocks"),
    "v2": (
        *("worked_example", "gqa", "bfloat16", "one_full_block", "more_vecs_than_groups"),
        *("very_deep_negative_scores", "drifting_scores", "long_context"),
    ),
}
# Functions that v2's second kernel calls, and that kernel.
OF_REDUCE = ("largest_of_partitions", "rescaled_sums", "merged_output", "reduce_partitions")
# A case of a function of v1, in whose notebook one range of blocks is the whole sequence.
OF_A_RANGE = "worked_example, in partitions: `blocks` begins at block 1 for the second"
GRADED = ("head_size_96", "block_size_8", "block_size_32")  # other constants than the notebook's


def launch_of(
    kernel: str, problem: DecodeProblem, mine: Functions
) -> CudaLaunch | PartitionedLaunch:
    """A step on a kernel with a reader's functions in it."""
    backend = BACKENDS[kernel].with_functions(**mine)
    if kernel != "v2":
        return backend.prepare(problem.paged("vllm"))
    several = max(problem.seq_lens) > PARTITION_SIZE  # partitions, with several blocks each
    size = PARTITION_SIZE if several else problem.block_size
    return backend.prepare(problem.paged("vllm"), partition_size=size)


def kernel_trials(file: str, name: str, draw: int, beside: Functions) -> list[Trial]:
    """The cases of a function of a kernel; another draw has other numbers, and further sizes."""
    if name == "write_keys":
        return by_itself.slot_trials(draw)
    cases = OF_FILE[file] + (GRADED if draw else ())
    problems = [reseeded(CASES[f"decode/{case}"], draw) for case in cases]
    trials = [kernel_trial(file, problem, file, name, beside) for problem in problems]
    if file == "v1" and name == "sum_values":
        trials.append(kernel_trial("v2", problems[0], file, name, beside))
    return by_itself.with_trials_of(file, name, draw, beside, trials)


def kernel_trial(
    kernel: str, problem: DecodeProblem, file: str, name: str, beside: Functions
) -> Trial:
    """A step on a kernel, with a function of a file in it, and the reader's others beside it."""
    bounds = bounds_of(problem.id)

    def launched(answer: Callable | None) -> CudaLaunch | PartitionedLaunch:
        return launch_of(kernel, problem, with_answer(beside, file, answer))

    def run(answer: Callable | None) -> Mapping[str, Tensor]:
        require_written(answer)
        launch = launched(answer)
        if not answer or not isinstance(launch, PagedLaunch):
            return launch.probe(max_turns=MOST_TURNS)
        report = launch.simulate(watch=MARKS, names=NAMES, max_turns=MOST_TURNS)
        found = intermediates(report, launch.geometry, launch.seq_lens) | {"out": launch.out}
        compared = compare(found, {"the oracle": problem.expected()}, bounds)
        right = {c.quantity for c in compared if c.passed}
        if "qk" in right:
            require_empty_slots_are_numbers(report, problem)
        require_all_threads_know(report, right)
        return found

    def trace(answer: Callable | None, block: tuple[int, int, int] = (0, 0, 0)) -> Trace:
        launch = launched(answer)
        options = {"collect": True, "max_turns": MOST_TURNS, "float64": True}
        if kernel != "v2":
            return launch.traced(block, **options)
        of_partitions = launch.partitions.traced(block, **options)
        return launch.reduce.traced(block, **options) if name in OF_REDUCE else of_partitions

    in_partitions = f"{problem.name}, in partitions" if file == "v2" else OF_A_RANGE
    return Trial(
        name=in_partitions if kernel == "v2" else problem.name,
        isolates=problem.isolates,
        meaning=problem.meaning,
        run=run,
        references={"the oracle": problem.expected},
        bounds=bounds,
        axes=problem.axes,
        problem=problem,
        trace=trace,
    )


def require_empty_slots_are_numbers(report: Report, problem: DecodeProblem) -> None:
    """Raises AnswerError for NaN in logits where a sequence has no token: 0 times it is NaN."""
    for snapshot in report.at(SCORES_DONE):
        head, sequence, _ = snapshot.block
        seq_len, size = problem.seq_lens[sequence], problem.block_size
        kept = snapshot["logits"][seq_len : -(-seq_len // size) * size].filled(0)
        bad = np.flatnonzero(~np.isfinite(kept))
        if len(bad):
            raise AnswerError(
                f"logits[{seq_len + bad[0]}] should be 0, because it is a slot without a token; "
                f"it is {kept[bad[0]]} (sequence {sequence}, head {head})"
            )


def require_all_threads_know(report: Report, right: set[str]) -> None:
    """Raises AnswerError if a maximum or sum that is right in thread 0 isn't in all threads."""
    marks = {"qk_max": SCORES_DONE, "exp_sum": SUM_DONE}
    for name in marks.keys() & right:
        for snapshot in report.at(marks[name]):
            numbers = snapshot[name]
            others = np.flatnonzero(numbers != numbers[0])
            if len(others):
                raise AnswerError(
                    f"thread {others[0]} has {numbers[others[0]]:.3g} for {name}, and thread 0 has "
                    f"{numbers[0]:.3g}: only some lanes know it, and all must"
                )


TRIALS = {file: partial(kernel_trials, file) for file in OF_FILE}
TRIALS["sizes"] = by_itself.size_trials
