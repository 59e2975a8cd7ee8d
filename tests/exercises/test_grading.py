"""What is no answer to compare is refused, and the message says what was wanted."""

from collections.abc import Callable

import pytest
import torch

from pa_tutorial.checks.calls import AnswerError
from pa_tutorial.exercises.grading import called, require_floats, require_tensors, whole_numbers
from pa_tutorial.exercises.triton_grading import run_kernel, tl

ROW = torch.tensor([1.0, torch.nan])
CHANGES: dict[str, Callable] = {
    "a number": lambda tensor, _: tensor.fill_(2),
    "a NaN": lambda tensor, _: tensor.nan_to_num_(),
    "the shape": lambda tensor, _: tensor.unsqueeze_(0),
    "the list": lambda _, numbers: numbers.pop(),
}


@pytest.mark.parametrize("change", CHANGES)
def test_an_answer_that_changes_an_argument_is_refused(change: str) -> None:
    with pytest.raises(AnswerError, match="changed one of its arguments"):
        called(CHANGES[change], ROW, [1, 2])
    assert called(lambda tensor, numbers: len(numbers), ROW, [1, 2]) == 2


REQUIRE: dict[str, Callable] = {
    "numbers": lambda result: whole_numbers(result, 2),
    "floats": lambda result: require_floats(result, ("m", "l")),
    "tensors": lambda result: require_tensors(result, "k, v", (ROW, ROW)),
}


@pytest.mark.parametrize(
    ("kind", "result", "message"),
    [
        ("numbers", (1, 2, 3), "2 whole"),
        ("numbers", (1, 2.0), "ints: // and %"),
        ("floats", (0.5, "1"), "2 floats: m, l"),
        ("tensors", (ROW,), "2 tensors: k, v"),
        ("tensors", (ROW, None), "not written yet"),
        ("tensors", (ROW, [1.0, 2.0]), "a list"),
        ("tensors", (ROW, ROW[:1]), r"\[1\]; it must return \[2\]"),
        ("tensors", (ROW, ROW.half()), "float16; it must return torch.float32"),
    ],
)
def test_what_has_another_number_type_or_shape_is_refused(
    kind: str, result: object, message: str
) -> None:
    with pytest.raises(AnswerError, match=message):
        REQUIRE[kind](result)


def clears_a_nan(x_ptr):
    tl.store(x_ptr + 1, 0.0)


@pytest.mark.triton
def test_a_triton_kernel_that_clears_a_nan_of_its_input_is_refused() -> None:
    with pytest.raises(AnswerError, match="x_ptr"):
        run_kernel(clears_a_nan, (1, 1, 1), x_ptr=ROW.clone())
