"""The paged kernels in the simulator: inputs are only read, thread blocks run at once."""

import pytest
import torch

from pa_tutorial.checks.cases import CASES
from pa_tutorial.checks.ladder import STAGES
from pa_tutorial.kernels.geometry import Geometry
from pa_tutorial.kernels.loads import element_loads
from pa_tutorial.kernels.naive import naive_kernel
from pa_tutorial.kernels.paged_attention import paged_attention
from pa_tutorial.kernels.vectors import vector_loads
from simt import program
from tests.simt.helpers import may_be_written


def test_the_inputs_of_the_paged_kernels_are_only_read() -> None:
    geometry = Geometry(32, 8)
    assert may_be_written(naive_kernel(geometry)) == {"out"}
    for loads in (element_loads, vector_loads):
        found = may_be_written(paged_attention(geometry, loads))
        assert found == {"out", "exp_sums", "max_logits"}


def test_the_thread_blocks_of_a_paged_kernel_run_side_by_side(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stage, case, ended = STAGES["cuda_v2"], CASES["decode/gqa_alibi"], []
    run = program.run_batched
    monkeypatch.setattr(program, "run_batched", lambda *args: ended.append(run(*args)) or ended[-1])
    one = stage.run(case)
    assert ended
    assert all(ended)
    monkeypatch.setattr(program, "may_run_batched", lambda *_: False)
    other = stage.run(case)
    torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)
