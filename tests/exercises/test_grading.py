"""What is no answer to compare is refused, and the message says what was wanted."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from pa_tutorial.checks.calls import AnswerError
from pa_tutorial.exercises.grading import (
    called,
    require_floats,
    require_tensors,
    whole_numbers,
)
from pa_tutorial.exercises.triton_grading import run_kernel, tl

ROW = torch.tensor([1.0, torch.nan])


def changes_the_tensor(tensor: Tensor, numbers: list[int]) -> int:
    tensor[0] = 2
    return 0


def changes_the_nan(tensor: Tensor, numbers: list[int]) -> int:
    tensor.nan_to_num_()
    return 0


def changes_the_shape(tensor: Tensor, numbers: list[int]) -> int:
    tensor.unsqueeze_(0)
    return 0


def changes_the_list(tensor: Tensor, numbers: list[int]) -> int:
    numbers.append(3)
    return 0


@pytest.mark.parametrize(
    "answer", [changes_the_tensor, changes_the_nan, changes_the_shape, changes_the_list]
)
def test_an_answer_that_changes_an_argument_is_refused(answer: Callable) -> None:
    with pytest.raises(AnswerError, match="it changed one of its arguments; it must only read"):
        called(answer, ROW, [1, 2])
    assert called(lambda tensor, numbers: len(numbers), ROW, [1, 2]) == 2


WANTED = "it must return 2 whole numbers"


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (None, "the function returned None: not written yet"),
        (7, f"it returned 7; {WANTED}"),
        ((1, 2, 3), rf"it returned \(1, 2, 3\); {WANTED}"),
        ((1, 2.0), r"it returned \(1, 2.0\); they must be ints: // and %"),
        ((1, True), r"it returned \(1, True\); they must be ints: // and %"),
    ],
)
def test_what_is_not_as_many_whole_numbers_is_refused(result: object, message: str) -> None:
    with pytest.raises(AnswerError, match=message):
        whole_numbers(result, 2)
    assert whole_numbers((1, 2), 2) == [1, 2]


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (ROW, "it must return 2 tensors: k, v"),
        ((ROW,), "it must return 2 tensors: k, v"),
        ((ROW, None), "the function returned None: not written yet"),
        ((ROW, [1.0, 2.0]), "it returned a list; it must return a tensor"),
        ((ROW, ROW[:1]), r"it returned the shape \[1\]; it must return \[2\]"),
        ((ROW, ROW.half()), "it returned torch.float16; it must return torch.float32"),
    ],
)
def test_tensors_of_another_number_shape_or_dtype_are_refused(result: object, message: str) -> None:
    with pytest.raises(AnswerError, match=message):
        require_tensors(result, "k, v", (ROW, ROW))
    assert require_tensors([ROW, ROW], "k, v", (ROW, ROW)) == [ROW, ROW]


@pytest.mark.parametrize("result", [0.5, (0.5,), (0.5, "1"), (0.5, torch.tensor(1.0))])
def test_what_is_not_as_many_floats_is_refused(result: object) -> None:
    with pytest.raises(AnswerError, match="it must return 2 floats: m, l"):
        require_floats(result, ("m", "l"))
    assert require_floats((0.5, 1), ("m", "l")) == [0.5, 1.0]


def clears_a_nan(x_ptr):
    tl.store(x_ptr + 1, 0.0)


@pytest.mark.triton
def test_a_triton_kernel_that_clears_a_nan_of_its_input_is_refused() -> None:
    with pytest.raises(AnswerError, match="the kernel changed x_ptr; it must only read it"):
        run_kernel(clears_a_nan, (1, 1, 1), x_ptr=ROW.clone())
