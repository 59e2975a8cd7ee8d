"""Launches with thread blocks side by side and one after another, to compare them."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pytest

from pa_tutorial.simt import Report, Snapshot, launch, program

Arguments = tuple[object, ...]


@dataclass
class Ran:
    """What a launch gave. batched: None if it was not tried, else whether it came to its end."""

    report: Report | None
    error: str
    arguments: Arguments
    batched: bool | None


@dataclass
class Trial:
    """Launches with thread blocks side by side where that is possible, or never."""

    monkeypatch: pytest.MonkeyPatch
    tried: list[bool] = field(default_factory=list)

    def __post_init__(self) -> None:
        run = program.run_batched

        def noted(*args: object) -> bool:
            self.tried.append(run(*args))
            return self.tried[-1]

        self.monkeypatch.setattr(program, "run_batched", noted)

    def run(self, kernel: object, grid: object, block: object, args: Arguments, **options) -> Ran:
        self.tried.clear()
        report, error = None, ""
        try:
            report = launch(kernel, grid, block, *args, **options)
        except Exception as found:  # a finding, or anything else: it must be the same
            error = f"{type(found).__name__}: {found}"
        return Ran(report, error, args, self.tried[0] if self.tried else None)

    def both(
        self, kernel: object, grid: object, block: object, draw: Callable[[], Arguments], **options
    ) -> Ran:
        """Side by side and one after another; they must agree. Returns the first."""
        one = self.run(kernel, grid, block, draw(), **options)
        with self.monkeypatch.context() as patch:
            patch.setattr(program, "may_run_batched", lambda *_: False)
            other = self.run(kernel, grid, block, draw(), **options)
        assert other.batched is None
        assert one.error == other.error
        for a, b in zip(one.arguments, other.arguments, strict=True):
            np.testing.assert_array_equal(a, b)
        if one.report is not None:
            assert one.report.findings == other.report.findings
            same_snapshots(one.report.snapshots, other.report.snapshots)
            if one.report.trace is not None:
                np.testing.assert_array_equal(one.report.trace.records, other.report.trace.records)
                assert one.report.trace.ways == other.report.trace.ways
        return one


def same_snapshots(ones: list[Snapshot], expected: list[Snapshot]) -> None:
    assert [(s.block, s.line) for s in ones] == [(s.block, s.line) for s in expected]
    for one, other in zip(ones, expected, strict=True):
        np.testing.assert_array_equal(one.threads, other.threads)
        assert set(one.values) == set(other.values)
        for name, value in one.values.items():
            assert value.dtype == other[name].dtype, name
            np.testing.assert_array_equal(
                np.ma.getmaskarray(value), np.ma.getmaskarray(other[name])
            )
            np.testing.assert_array_equal(value.compressed(), other[name].compressed())


def six_blocks() -> Arguments:
    """out for six thread blocks of a warp, and one number for each thread of a warp."""
    return np.zeros(6 * 32, np.float32), np.arange(32, dtype=np.float32)
