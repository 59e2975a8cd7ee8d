"""Every loop of a kernel takes a second turn in some case: a first turn alone can't show that its
step is wrong, or its end. What the simulator counts is the list of loops. (Of the loops that a
reader writes, tests/exercises/test_mutants.py tries the mistakes themselves.)"""

from collections import Counter
from collections.abc import Callable

import pytest

from pa_tutorial.checks.cases import CASES, SHORT_CHECK
from pa_tutorial.checks.ladder import STAGES
from simt import arithmetic
from simt.statements import Statements

# Together these cases of the short check take every loop round twice.
NAMES = "drifting_scores float8_e4m3 more_vecs_than_groups more_partitions_than_threads"
ENOUGH = [f"decode/{name}" for name in NAMES.split()]


def test_each_loop_of_the_kernels_takes_a_second_turn_in_the_short_check(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    most_turns: Counter[str] = Counter()  # of each loop that ran, in one go
    loop = Statements._loop

    def counted(
        self: Statements, node: object, start: Callable, more: Callable, *rest: object
    ) -> Callable:
        site = self.source.site(node)
        name, turns = f"{site.function}, line {site.line}: {site.code}", 0
        most_turns[name] += 0

        def started(frame: object) -> object:
            nonlocal turns
            turns = 0
            return start(frame)

        def counting(frame: object, state: object) -> object:
            nonlocal turns
            going = more(frame, state)
            turns += bool(frame.lanes.where(arithmetic.truth(going)).count)
            most_turns[name] = max(most_turns[name], turns)
            return going

        return loop(self, node, started, counting, *rest)

    monkeypatch.setattr(Statements, "_loop", counted)
    assert {*ENOUGH} <= {*SHORT_CHECK}
    for stage in (STAGES[name] for name in STAGES if name.startswith("cuda_")):
        for case in filter(stage.is_checked_on, map(CASES.get, ENOUGH)):
            stage.run(case)
    assert len(most_turns) > 35
    assert not [name for name, turns in most_turns.items() if turns < 2]
