"""vLLM's own kernel: its text isn't here, so only what happens without it is tested."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from pa_tutorial.bench.original import main
from pa_tutorial.checks.cases import WORKED_EXAMPLE
from pa_tutorial.kernels.compiled.original import (
    FOLDERS,
    KERNELS,
    TYPES,
    compiled_original,
    run_original,
    run_original_v2,
)

# Kernels with the names, types and parameters of vLLM's, which copy q.
KERNEL = """
namespace vllm {{
enum class Fp8KVCacheDataType {{ kAuto = 0 }};
#define GIVEN const T* q, const C* k_cache, const C* v_cache, const int num_kv_heads, \\
    const float scale, const int* block_tables, const int* seq_lens, const int max_num_blocks, \\
    const float* slopes, const int q_stride, const int kv_block_stride, const int kv_head_stride, \\
    const float* k_scale, const float* v_scale, int a, int b, int c, int d, int e
template <typename T, typename C, int HEAD_SIZE, int BLOCK_SIZE, int THREADS,
          Fp8KVCacheDataType TYPE, bool SPARSE>
__global__ void paged_attention_v1_kernel(T* out, GIVEN) {{
  const int at = threadIdx.x + HEAD_SIZE * blockIdx.x;
  if (threadIdx.x < HEAD_SIZE) out[at + HEAD_SIZE * gridDim.x * blockIdx.y] = {value};
}}
template <typename T, typename C, int HEAD_SIZE, int BLOCK_SIZE, int THREADS,
          Fp8KVCacheDataType TYPE, bool SPARSE, int PARTITION_SIZE>
__global__ void paged_attention_v2_kernel(float* exp_sums, float* max_logits, T* tmp_out, GIVEN) {{
  __shared__ T row[HEAD_SIZE];  // every partition: a copy of q
  const int at = threadIdx.x + HEAD_SIZE * blockIdx.x;
  const int part = blockIdx.z + gridDim.z * (blockIdx.x + gridDim.x * blockIdx.y);
  if (threadIdx.x < HEAD_SIZE) {{
    row[threadIdx.x] = {value};
    tmp_out[part * HEAD_SIZE + threadIdx.x] = row[threadIdx.x];
  }}
}}
template <typename T, int HEAD_SIZE, int THREADS, int PARTITION_SIZE>
__global__ void paged_attention_v2_reduce_kernel(
    T* out, const float* exp_sums, const float* max_logits, const T* tmp_out, const int* seq_lens,
    const int max_num_partitions) {{
  const int head = blockIdx.x + gridDim.x * blockIdx.y;  // its last partition
  const int last = head * max_num_partitions + max_num_partitions - 1;
  if (threadIdx.x < HEAD_SIZE)
    out[head * HEAD_SIZE + threadIdx.x] = tmp_out[last * HEAD_SIZE + threadIdx.x];
}}
}}
"""


def source(path: Path, value: str, folder: str = FOLDERS[0]) -> Path:
    (path / folder).mkdir(parents=True)
    (path / folder / KERNELS).write_text(KERNEL.format(value=value), encoding="utf-8")
    return path


def test_what_is_missing_is_said_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main([str(tmp_path)]) == 1
    assert f"{tmp_path} has no {KERNELS}" in (said := capsys.readouterr().err)
    monkeypatch.setenv("PATH", "")
    assert main([str(source(tmp_path, "q[0]"))]) == 1
    assert "nvcc" in (said := said + capsys.readouterr().err)
    assert said.count("\n") == 2


@pytest.mark.rest(keep=["dtype0"])  # float16
@pytest.mark.skipif(not shutil.which("nvcc"), reason="needs nvcc")
@pytest.mark.parametrize("dtype", TYPES)
def test_the_arguments_arrive_where_vllm_expects_them(tmp_path: Path, dtype: torch.dtype) -> None:
    problem = replace(WORKED_EXAMPLE, dtype=dtype)
    path = source(tmp_path, "q[at + q_stride * blockIdx.y]", FOLDERS[1])
    step = problem.paged("vllm")
    text = compiled_original(path, step, problem.block_size)
    out, report = run_original(text, step, problem.block_size)
    assert torch.equal(out, step.q)
    assert report.issued["barrier"] == 0
    again, *_ = run_original_v2(text, step)
    assert torch.equal(again["out"], step.q)
