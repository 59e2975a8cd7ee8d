"""Numbers that can be looked at once: how a grader sees that an answer needs one pass only."""

import weakref
from collections.abc import Iterator, Sequence

from pa_tutorial.checks.calls import AnswerError

MOST_KEPT = 4  # scores that an answer may hold at a time; m and the current one are enough


class Score(float):
    """A float of which one can tell whether anybody still holds it."""


def once(scores: Sequence[float]) -> Iterator[float]:
    """Each score once; AnswerError if so many are kept that a second pass is possible."""
    handed_out: list[weakref.ref[Score]] = []
    for number in [*scores, None]:
        kept = sum(score() is not None for score in handed_out)
        if kept > MOST_KEPT:
            raise AnswerError(f"it keeps {kept} scores; one pass keeps m and l, and no list")
        if number is not None:
            score = Score(number)
            handed_out.append(weakref.ref(score))
            yield score
            del score
