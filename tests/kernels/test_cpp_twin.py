"""paged_attention.cu on a CPU: the same file that NVRTC compiles gives the oracle's output."""

import dataclasses

import pytest
import torch
from cpp_on_the_host import run_on_the_host
from kernel_inputs import arguments, problem, values
from test_kernel_partitions import SHORT, UNTOUCHED
from test_kernel_partitions import run as simulated
from torch import Tensor

from pa_tutorial.checks.comparing import bounds_of, relative_errors, to_float64
from pa_tutorial.kernels.cpp_twin import SOURCE
from pa_tutorial.kernels.launch import Launch, prepare_v1
from pa_tutorial.kernels.running import as_stored
from pa_tutorial.walk.cases import CASES
from pa_tutorial.walk.problem import DecodeProblem

pytestmark = pytest.mark.needs("a C++ compiler")
F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16

# Few geometries: each is compiled anew.
CASE_IDS = tuple(
    f"decode/{name}"
    for name in (
        *("one_token", "strided_q", "sharp_softmax", "stale_slots_far_above", "wide_tables"),
        *("many_sequences_of_different_length", "gqa_alibi", "head_size_120_float16"),
        *("drifting_over_lanes_and_warps", "extreme_scores", "huge_scores"),
        *("deep_negative_scores_bfloat16", "worked_example", "strided_q_float16"),
        *("head_size_256", "alibi_block_size_8"),
    )
)


def error(out: Tensor, case: DecodeProblem) -> float:
    return float(relative_errors(to_float64(out), case.expected()["out"]).max())


@pytest.mark.parametrize("case_id", CASE_IDS)
def test_the_twin_passes_the_cases_of_cuda_v1(case_id: str) -> None:
    case = CASES[case_id]
    out = run_on_the_host(prepare_v1(**arguments(case)))
    assert error(out, case) <= bounds_of(case_id)["out"]


@pytest.mark.parametrize(
    ("case", "num_threads"),
    [
        (problem(head_size=128, num_heads=2, num_kv_heads=1, dtype=BF16, alibi=True), 64),
        (problem(seq_lens=(140,), num_heads=1, num_kv_heads=1, block_size=32, dtype=F16), 256),
    ],
)
def test_the_twin_runs_with_other_numbers_of_threads(case: DecodeProblem, num_threads: int) -> None:
    out = run_on_the_host(prepare_v1(**arguments(case), num_threads=num_threads))
    assert error(out, case) < torch.finfo(case.dtype).eps / 2 + 2e-6


def test_partitions_are_those_of_the_kernel_in_python() -> None:
    paged, partition_size = SHORT.paged("vllm"), 32
    expected = simulated(paged, partition_size, more=1)
    v1 = prepare_v1(*values(paged))
    written = {
        name: torch.full_like(getattr(expected, name), UNTOUCHED)
        for name in ("exp_sums", "max_logits", "out")
    }
    prepared = Launch(
        kernel=None,
        geometry=dataclasses.replace(v1.geometry, partition_size=partition_size),
        grid=(*v1.grid[:2], expected.out.shape[2]),
        shared_bytes=max(4 * partition_size, v1.geometry.dynamic_shared_bytes(0)),
        arguments={**v1.arguments, **{name: as_stored(at) for name, at in written.items()}},
        order=v1.order,
        out=written["out"],
    )
    run_on_the_host(prepared)
    for name, found in written.items():
        torch.testing.assert_close(found, getattr(expected, name), rtol=1e-5, atol=1e-6)


MISTAKES = {
    "the tail of V is not zeroed": (
        "if (token_idx + j >= seq_len) v_vec.elements[j] = scalar_t{};",
        ";",
        "decode/wide_tables",
    ),
    "empty slots have a score": (
        "const bool mask = token_idx >= seq_len;",
        "const bool mask = false;",
        "decode/stale_slots_far_above",
    ),
    "heads are dealt out in turn": (
        "head_idx / NUM_QUERIES_PER_KV",
        "head_idx % (num_heads / NUM_QUERIES_PER_KV)",
        "decode/gqa_alibi",
    ),
    "the stride of q is ignored": (
        "seq_idx * q_stride",
        "seq_idx * num_heads * HEAD_SIZE",
        "decode/strided_q",
    ),
    "every warp knows the maximum of the first only": (
        "qk_max = lane < NUM_WARPS ?",
        "qk_max = lane < 1 ?",
        "decode/drifting_over_lanes_and_warps",
    ),
    "scaled after the bias": (
        "qk += alibi_slope *",
        "qk += scale * alibi_slope *",
        "decode/gqa_alibi",
    ),
    "all sequences have the first one's blocks": (
        "block_tables + seq_idx * max_num_blocks_per_seq",
        "block_tables",
        "decode/strided_q",
    ),
}


@pytest.mark.parametrize(("old", "new", "case_id"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_in_the_twin_is_seen(old: str, new: str, case_id: str) -> None:
    text = SOURCE.read_text(encoding="utf-8")
    assert text.count(old) == 1
    case = CASES[case_id]
    out = run_on_the_host(prepare_v1(**arguments(case)), text.replace(old, new))
    assert not error(out, case) <= bounds_of(case_id)["out"]


def test_writing_behind_the_shared_memory_is_seen() -> None:
    old, new = "logits[token_idx - start_token_idx] =", "logits[token_idx + 1] ="
    prepared = prepare_v1(**arguments(problem(seq_lens=(256,), num_heads=1, num_kv_heads=1)))
    with pytest.raises(AssertionError, match="1 thread blocks wrote behind"):
        run_on_the_host(prepared, SOURCE.read_text(encoding="utf-8").replace(old, new))
