"""What a blank is tried on: its function in the kernel's file, on small decode steps.

The simplest step comes first, so that what is wrong everywhere is told about it. Some functions are
tried by themselves, too (function_cases.py).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from pa_tutorial.checks.calls import AnswerError
from pa_tutorial.checks.cases import CASES
from pa_tutorial.checks.comparing import Comparison, compare
from pa_tutorial.checks.problem import DecodeProblem
from pa_tutorial.checks.running import Trial
from pa_tutorial.exercises import function_cases as by_itself
from pa_tutorial.exercises.function_cases import MOST_TURNS
from pa_tutorial.exercises.grading import bounds_for
from pa_tutorial.exercises.our_kernels import BACKENDS
from pa_tutorial.exercises.ours import require_theirs
from pa_tutorial.exercises.random_inputs import reseeded
from pa_tutorial.exercises.together import Functions, with_answer
from pa_tutorial.kernels.cuda_launch import CudaLaunch, PagedLaunch, PartitionedLaunch
from pa_tutorial.kernels.intermediates import MARKS, NAMES, SCORES_DONE, SUM_DONE, intermediates
from simt import Finding, Report, SimtError, Trace
from simt.gpus import WARP_SIZE

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
NEVER_WRITTEN = ("init", "qk"), ("init", "logits")  # findings: a check, and an array with scores
EMPTY_SLOT = "but it must be 0, because it is a slot without a token"
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
    return backend.prepare(problem.paged("vllm"), partition_size=partition_size_of(problem))


def partition_size_of(problem: DecodeProblem) -> int:
    """Of v2 here: short sequences have partitions, too, and long ones several blocks in each."""
    is_long = max(problem.seq_lens) > PARTITION_SIZE
    return PARTITION_SIZE if is_long else problem.block_size


def kernel_trials(file: str, name: str, draw: int, beside: Functions) -> list[Trial]:
    """The cases of a function of a kernel; another draw has other numbers, and further sizes."""
    if name == "write_keys":
        return by_itself.slot_trials(draw)
    cases = OF_FILE[file] + (GRADED if draw else ())
    problems = [reseeded(CASES[f"decode/{case}"], draw) for case in cases]
    each = (KernelCase(file, problem, file, name, beside, draw) for problem in problems)
    trials = [case.trial() for case in each]
    if file == "v1" and name == "sum_values":
        trials.append(KernelCase("v2", problems[0], file, name, beside, draw).trial())
    return by_itself.with_trials_of(file, name, draw, beside, trials)


@dataclass(frozen=True)
class KernelCase:
    """A step on a kernel, with a function of a file in it, and the reader's others beside it."""

    kernel: str
    problem: DecodeProblem
    file: str
    name: str
    beside: Functions
    draw: int

    @property
    def bounds(self) -> Mapping[str, float]:
        return bounds_for(self.problem.id, self.draw)

    def launched(self, answer: Callable | None) -> CudaLaunch | PartitionedLaunch:
        return launch_of(self.kernel, self.problem, with_answer(self.beside, self.file, answer))

    def run(self, answer: Callable | None) -> Mapping[str, Tensor]:
        require_theirs(answer)
        try:
            return self.quantities(answer)
        except SimtError as error:
            # A score is read that was never written: what failed is to write it.
            if (error.finding.check, error.finding.array) not in NEVER_WRITTEN:
                raise
            self.require_empty_slot_written(error.finding)
            found = self.launched(answer).probe(max_turns=MOST_TURNS, collect=True)
            if self.compared(found)[0].passed:
                raise
            return found

    def require_empty_slot_written(self, finding: Finding) -> None:
        """Raises AnswerError for a place behind the tokens that is read and was never written."""
        (_, sequence, _), (place, *_), site = finding.block, finding.index, finding.site
        seq_len, size = self.problem.seq_lens[sequence], self.problem.block_size
        if self.kernel == "v2" or place < seq_len:
            return
        if place < -(-seq_len // size) * size:
            raise AnswerError(f"no thread wrote logits[{place}], {EMPTY_SLOT}")
        raise AnswerError(
            f"thread {finding.thread} reads logits[{place}], but the sequence has {seq_len} "
            f"tokens, in blocks of {size}\nline {site.line} of {site.function}:  {site.code}"
        )

    def compared(self, found: Mapping[str, Tensor]) -> list[Comparison]:
        return compare(found, {"the oracle": self.problem.expected()}, self.bounds)

    def quantities(self, answer: Callable | None) -> Mapping[str, Tensor]:
        launch = self.launched(answer)
        if not answer or not isinstance(launch, PagedLaunch):
            return launch.probe(max_turns=MOST_TURNS)
        report = launch.simulate(watch=MARKS, names=NAMES, max_turns=MOST_TURNS)
        found = intermediates(report, launch.geometry, launch.seq_lens) | {"out": launch.out}
        right = {c.quantity for c in self.compared(found) if c.passed}
        if "qk" in right:
            require_empty_slots_are_numbers(report, self.problem)
        require_all_threads_know(report, right)
        return found

    def trace(self, answer: Callable | None, block: tuple[int, int, int] = (0, 0, 0)) -> Trace:
        launch = self.launched(answer)
        options = {"collect": True, "max_turns": MOST_TURNS, "float64": True}
        if self.kernel != "v2":
            return launch.traced(block, **options)
        of_partitions = launch.partitions.traced(block, **options)
        is_reduce = self.name in OF_REDUCE
        return launch.reduce.traced(block, **options) if is_reduce else of_partitions

    def trial(self) -> Trial:
        problem, name = self.problem, self.problem.name
        if self.kernel == "v2":
            name = f"{name}, in partitions" if self.file == "v2" else OF_A_RANGE
        return Trial(
            name=name,
            isolates=problem.isolates,
            meaning=problem.meaning,
            run=self.run,
            references={"the oracle": problem.expected},
            bounds=self.bounds,
            axes=problem.axes,
            problem=problem,
            trace=self.trace,
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
                f"logits[{seq_len + bad[0]}] is {kept[bad[0]]}, {EMPTY_SLOT} "
                f"(sequence {sequence}, head {head})"
            )


def require_all_threads_know(report: Report, right: set[str]) -> None:
    """Raises AnswerError if a maximum or sum that is right in thread 0 isn't in all threads."""
    marks = {"qk_max": SCORES_DONE, "exp_sum": SUM_DONE}
    for name in marks.keys() & right:
        for snapshot in report.at(marks[name]):
            numbers = snapshot[name]
            others = np.flatnonzero(numbers != numbers[0])
            if len(others):
                by_warp = (numbers == numbers[0]).reshape(-1, WARP_SIZE)
                is_only_0 = by_warp[0].all() and not by_warp[1:].any()
                who = "warp 0 knows it" if is_only_0 else "some lanes know it"
                raise AnswerError(
                    f"thread {others[0]} has {numbers[others[0]]:.3g} for {name}, and thread 0 has "
                    f"{numbers[0]:.3g}: only {who}, and all must"
                )
