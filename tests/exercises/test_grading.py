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


@pytest.mark.parametrize(
    ("result", "message"),
    [(7, "2 whole"), ((1, 2, 3), "2 whole"), ((1, 2.0), "ints: // and %"), ((1, True), "ints")],
)
def test_what_is_not_as_many_whole_numbers_is_refused(result: object, message: str) -> None:
    with pytest.raises(AnswerError, match=message):
        whole_numbers(result, 2)
    assert whole_numbers((1, 2), 2) == [1, 2]


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (ROW, "2 tensors: k, v"),
        ((ROW,), "2 tensors: k, v"),
        ((ROW, None), "not written yet"),
        ((ROW, [1.0, 2.0]), "a list"),
        ((ROW, ROW[:1]), r"\[1\]; it must return \[2\]"),
        ((ROW, ROW.half()), "float16; it must return torch.float32"),
    ],
)
def test_tensors_of_another_number_shape_or_dtype_are_refused(result: object, message: str) -> None:
    with pytest.raises(AnswerError, match=message):
        require_tensors(result, "k, v", (ROW, ROW))
    assert require_tensors([ROW, ROW], "k, v", (ROW, ROW)) == [ROW, ROW]


@pytest.mark.parametrize("result", [0.5, (0.5,), (0.5, "1"), (0.5, torch.tensor(1.0))])
def test_what_is_not_as_many_floats_is_refused(result: object) -> None:
    with pytest.raises(AnswerError, match="2 floats: m, l"):
        require_floats(result, ("m", "l"))
    assert require_floats((0.5, 1), ("m", "l")) == [0.5, 1.0]


def clears_a_nan(x_ptr):
    tl.store(x_ptr + 1, 0.0)


@pytest.mark.triton
def test_a_triton_kernel_that_clears_a_nan_of_its_input_is_refused() -> None:
    with pytest.raises(AnswerError, match="x_ptr"):
        run_kernel(clears_a_nan, (1, 1, 1), x_ptr=ROW.clone())
