"""The paged kernels in the simulator: inputs are only read, thread blocks run at once."""

import pytest
import torch

from pa_tutorial.checks.cases import CASES
from pa_tutorial.checks.ladder import STAGES
from pa_tutorial.kernels.template import made
from simt import program
from tests.simt.helpers import may_be_written


def test_the_inputs_of_the_kernels_are_only_read() -> None:
    assert may_be_written(made("naive").naive_kernel) == {"out"}
    for kernel in ("v1", "v1_vector"):
        assert may_be_written(made(kernel).paged_attention_v1) == {"out"}
    v2, partials = made("v2"), {"exp_sums", "max_logits", "tmp_out"}
    assert may_be_written(v2.paged_attention_v2) == partials
    assert may_be_written(v2.reduce_partitions) == {"out"}


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
