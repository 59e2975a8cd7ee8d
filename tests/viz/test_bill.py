"""The bill of the kernels says whose kernel a row is."""

import pytest

from pa_tutorial.exercises.blank import all_blanks
from pa_tutorial.exercises.my_kernel import yours
from pa_tutorial.kernels.cuda_backends import v1_vector_backend
from pa_tutorial.viz import bill as room
from tests.exercises.blank_cells import function_of


def test_a_readers_row_stands_below_ours_and_is_never_recorded_as_ours(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(room, "record", lambda rows: pytest.fail("recorded"))
    blank = all_blanks()["load_key_by_vec"]
    mine = v1_vector_backend.with_functions(v1_vector=[function_of(blank, blank.source)])
    table = room.bill("v1, vectors", mine.prepare(room.STEP.paged("vllm")), yours(mine))
    assert table.column("kernel") == ["naive", "v1", "v1, vectors", "yours"]
    assert table.note.startswith("1 of 13 functions of v1_vector is yours.\n")
    assert table.rows[-1][1:-2] == table.rows[-2][1:-2]
