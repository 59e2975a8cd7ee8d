// paged_attention.py in CUDA C++: the same statements in the same order with the same names.
// Algorithm: vLLM, csrc/attention/attention_kernels.cuh, paged_attention_kernel.
//
// It includes nothing, so NVRTC can compile it on a machine without a CUDA toolkit. The tests do so
// and look at the machine code; nothing runs it. The geometry comes as macros: SCALAR_T (float32,
// float16 or bfloat16), HEAD_SIZE, BLOCK_SIZE, NUM_THREADS, PARTITION_SIZE, NUM_QUERIES_PER_KV.
//
// C++ makes two things easy. A vec is one load, because its type is aligned to its size. And
// `#pragma unroll` makes every index of k_vecs and accs a constant, as registers can't be indexed.

__device__ constexpr int larger(int a, int b) { return a > b ? a : b; }
__device__ constexpr int smaller(int a, int b) { return a < b ? a : b; }
__device__ constexpr int divide_round_up(int a, int b) { return (a + b - 1) / b; }

// An element as it is stored in memory.
struct float32 { float value; };
struct float16 { unsigned short bits; };
struct bfloat16 { unsigned short bits; };
using scalar_t = SCALAR_T;

// geometry.py says what they mean.
constexpr int WARP_SIZE = 32;
constexpr unsigned ALL_LANES = 0xFFFFFFFF;
constexpr float FLT_MAX = 3.402823466e38f;
constexpr bool USE_PARTITIONING = PARTITION_SIZE > 0;
constexpr int NUM_WARPS = NUM_THREADS / WARP_SIZE;
constexpr int THREAD_GROUP_SIZE = larger(WARP_SIZE / BLOCK_SIZE, 1);
constexpr int NUM_THREAD_GROUPS = NUM_THREADS / THREAD_GROUP_SIZE;
constexpr int NUM_TOKENS_PER_THREAD_GROUP = divide_round_up(BLOCK_SIZE, WARP_SIZE);
constexpr int X = 16 / sizeof(scalar_t);
constexpr int VEC_SIZE = larger(X / THREAD_GROUP_SIZE, 1);
constexpr int NUM_VECS_PER_THREAD = HEAD_SIZE / THREAD_GROUP_SIZE / VEC_SIZE;
constexpr int V_VEC_SIZE = smaller(X, BLOCK_SIZE);
constexpr int NUM_V_VECS_PER_ROW = BLOCK_SIZE / V_VEC_SIZE;
constexpr int NUM_ROWS_PER_ITER = WARP_SIZE / NUM_V_VECS_PER_ROW;
constexpr int NUM_ROWS_PER_THREAD = divide_round_up(HEAD_SIZE, NUM_ROWS_PER_ITER);

// N elements side by side. One instruction reads at most 16 bytes, so 8 weights take two.
template <typename T, int N>
struct alignas(smaller(N * sizeof(T), 16)) Vec {
  T elements[N];
};
using Q_vec = Vec<scalar_t, VEC_SIZE>;
using K_vec = Vec<scalar_t, VEC_SIZE>;
using V_vec = Vec<scalar_t, V_VEC_SIZE>;
using Float_L_vec = Vec<float, V_VEC_SIZE>;

// Elements to float32 and back, to the nearest, ties to even: dtypes.py.
__device__ float to_float(float32 element) { return element.value; }
__device__ void from_float(float32& element, float value) { element.value = value; }

__device__ float to_float(bfloat16 element) { return __uint_as_float(element.bits << 16); }
__device__ void from_float(bfloat16& element, float value) {
  const unsigned bits = __float_as_uint(value);
  const bool is_nan = (bits & 0x7FFFFFFF) > 0x7F800000;
  element.bits = is_nan ? 0x7FFF : (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
}

#ifdef __CUDACC__  // only compilers for GPUs know these instructions
__device__ float to_float(float16 element) {
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(element.bits));
  return value;
}
__device__ void from_float(float16& element, float value) {
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(element.bits) : "f"(value));
}
#endif

// Threads that work together: warp.py.
__device__ float qk_dot(const Q_vec* q_vecs, const K_vec* k_vecs) {
  float qk = 0.0f;
#pragma unroll
  for (int ii = 0; ii < NUM_VECS_PER_THREAD; ++ii) {
    const Q_vec q_vec = q_vecs[ii];  // a copy: one load from shared memory
    for (int e = 0; e < VEC_SIZE; ++e)
      qk += to_float(q_vec.elements[e]) * to_float(k_vecs[ii].elements[e]);
  }
  for (int mask = THREAD_GROUP_SIZE / 2; mask >= 1; mask /= 2)
    qk += __shfl_xor_sync(ALL_LANES, qk, mask);
  return qk;
}

__device__ float block_sum(float* red_smem, float sum) {
  const int warp = threadIdx.x / WARP_SIZE;
  const int lane = threadIdx.x % WARP_SIZE;
  for (int mask = WARP_SIZE / 2; mask >= 1; mask /= 2)
    sum += __shfl_xor_sync(ALL_LANES, sum, mask);
  if (lane == 0) red_smem[warp] = sum;
  __syncthreads();
  if (lane < NUM_WARPS) sum = red_smem[lane];
  for (int mask = NUM_WARPS / 2; mask >= 1; mask /= 2)
    sum += __shfl_xor_sync(ALL_LANES, sum, mask);
  return __shfl_sync(ALL_LANES, sum, 0);
}

// Dynamic shared memory, of the size that the launch asks for; Vec<float, 4> aligns it to 16.
extern __shared__ Vec<float, 4> dynamic_shared_memory[];

// grid (num_heads, num_seqs, max_num_partitions), NUM_THREADS threads
extern "C" __global__ void paged_attention_kernel(
    float* __restrict__ exp_sums,          // [num_seqs, num_heads, max_num_partitions]
    float* __restrict__ max_logits,        // the same; both are not used by v1
    scalar_t* __restrict__ out,            // [num_seqs, num_heads, max_num_partitions, HEAD_SIZE]
    const scalar_t* __restrict__ q,        // [num_seqs, num_heads, HEAD_SIZE]
    const scalar_t* __restrict__ k_cache,  // [num_blocks, num_kv_heads, HEAD_SIZE/X, BLOCK_SIZE, X]
    const scalar_t* __restrict__ v_cache,  // [num_blocks, num_kv_heads, HEAD_SIZE, BLOCK_SIZE]
    const float scale,
    const int* __restrict__ block_tables,  // [num_seqs, max_num_blocks_per_seq]
    const int* __restrict__ seq_lens,      // [num_seqs]
    const float* __restrict__ alibi_slopes,  // [num_heads]; 0: no bias
    const long long q_stride, const long long kv_block_stride, const long long kv_head_stride,
    const int max_num_blocks_per_seq) {    // in Python the array block_tables knows it
  // Prologue: which head, sequence and tokens are this thread block's.
  const int seq_idx = blockIdx.y;
  const int partition_idx = blockIdx.z;
  const int max_num_partitions = gridDim.z;
  const int seq_len = seq_lens[seq_idx];
  if (USE_PARTITIONING && partition_idx * PARTITION_SIZE >= seq_len) return;

  const int num_seq_blocks = divide_round_up(seq_len, BLOCK_SIZE);
  const int num_blocks_per_partition =
      USE_PARTITIONING ? PARTITION_SIZE / BLOCK_SIZE : num_seq_blocks;
  const int start_block_idx = partition_idx * num_blocks_per_partition;
  const int end_block_idx = min(start_block_idx + num_blocks_per_partition, num_seq_blocks);
  const int start_token_idx = start_block_idx * BLOCK_SIZE;
  const int end_token_idx = min(end_block_idx * BLOCK_SIZE, seq_len);
  const int num_tokens = end_token_idx - start_token_idx;

  // No uint32 needed: this compiler knows that threadIdx.x is at most 1023.
  const int thread_idx = threadIdx.x;
  const int warp_idx = thread_idx / WARP_SIZE;
  const int lane = thread_idx % WARP_SIZE;
  const int head_idx = blockIdx.x;
  const int num_heads = gridDim.x;
  const int kv_head_idx = head_idx / NUM_QUERIES_PER_KV;
  const float alibi_slope = alibi_slopes[head_idx];

  const int thread_group_idx = thread_idx / THREAD_GROUP_SIZE;
  const int thread_group_offset = thread_idx % THREAD_GROUP_SIZE;

  // q to shared memory, once for all groups.
  const scalar_t* q_ptr = q + seq_idx * q_stride + head_idx * HEAD_SIZE;
  static __shared__ Q_vec q_vecs[THREAD_GROUP_SIZE][NUM_VECS_PER_THREAD];
  for (int i = thread_group_idx; i < NUM_VECS_PER_THREAD; i += NUM_THREAD_GROUPS) {
    const int vec_idx = thread_group_offset + i * THREAD_GROUP_SIZE;
    q_vecs[thread_group_offset][i] = *reinterpret_cast<const Q_vec*>(q_ptr + vec_idx * VEC_SIZE);
  }
  __syncthreads();

  float* shared_mem = reinterpret_cast<float*>(dynamic_shared_memory);
  float* logits = shared_mem;
  static __shared__ float red_smem[2 * NUM_WARPS];
  float qk_max = -FLT_MAX;

  // qk = scale * (q . k): a warp takes every NUM_WARPS-th block, a thread group one token of it.
  const int* block_table = block_tables + seq_idx * max_num_blocks_per_seq;
  for (int block_idx = start_block_idx + warp_idx; block_idx < end_block_idx;
       block_idx += NUM_WARPS) {
    const long long physical_block_number = block_table[block_idx];
    for (int i = 0; i < NUM_TOKENS_PER_THREAD_GROUP; ++i) {
      const int physical_block_offset = (thread_group_idx + i * WARP_SIZE) % BLOCK_SIZE;
      const int token_idx = block_idx * BLOCK_SIZE + physical_block_offset;
      K_vec k_vecs[NUM_VECS_PER_THREAD];
      const scalar_t* k_ptr = k_cache + physical_block_number * kv_block_stride +
                              kv_head_idx * kv_head_stride + physical_block_offset * X;
#pragma unroll
      for (int j = 0; j < NUM_VECS_PER_THREAD; ++j) {
        const int vec_idx = thread_group_offset + j * THREAD_GROUP_SIZE;
        const int offset1 = (vec_idx * VEC_SIZE) / X;
        const int offset2 = (vec_idx * VEC_SIZE) % X;
        k_vecs[j] = *reinterpret_cast<const K_vec*>(k_ptr + offset1 * BLOCK_SIZE * X + offset2);
      }

      float qk = scale * qk_dot(q_vecs[thread_group_offset], k_vecs);
      // No `if (alibi_slope != 0)`: for it, this compiler writes the whole loop twice.
      qk += alibi_slope * (token_idx - seq_len + 1);

      if (thread_group_offset == 0) {
        const bool mask = token_idx >= seq_len;
        logits[token_idx - start_token_idx] = mask ? 0.0f : qk;
        qk_max = mask ? qk_max : fmaxf(qk_max, qk);
      }
    }
  }

  // The maximum over the warp, then over the warps.
  for (int mask = WARP_SIZE / 2; mask >= THREAD_GROUP_SIZE; mask /= 2)
    qk_max = fmaxf(qk_max, __shfl_xor_sync(ALL_LANES, qk_max, mask));
  if (lane == 0) red_smem[warp_idx] = qk_max;
  __syncthreads();
  qk_max = lane < NUM_WARPS ? red_smem[lane] : -FLT_MAX;
  for (int mask = NUM_WARPS / 2; mask >= 1; mask /= 2)
    qk_max = fmaxf(qk_max, __shfl_xor_sync(ALL_LANES, qk_max, mask));
  qk_max = __shfl_sync(ALL_LANES, qk_max, 0);

  // exp_sum = sum of exp(qk - qk_max); weight = exp(qk - qk_max) / exp_sum
  float exp_sum = 0.0f;
  for (int i = thread_idx; i < num_tokens; i += NUM_THREADS) {
    const float val = __expf(logits[i] - qk_max);
    logits[i] = val;
    exp_sum += val;
  }
  exp_sum = block_sum(&red_smem[NUM_WARPS], exp_sum);
  const float inv_sum = __fdividef(1.0f, exp_sum + 1e-6f);
  for (int i = thread_idx; i < num_tokens; i += NUM_THREADS) logits[i] *= inv_sum;
  __syncthreads();

  if (USE_PARTITIONING && thread_idx == 0) {
    const long long row = (seq_idx * (long long)num_heads + head_idx) * max_num_partitions;
    max_logits[row + partition_idx] = qk_max;
    exp_sums[row + partition_idx] = exp_sum;
  }

  // out = sum of weight * V
  float accs[NUM_ROWS_PER_THREAD] = {};
  for (int block_idx = start_block_idx + warp_idx; block_idx < end_block_idx;
       block_idx += NUM_WARPS) {
    const long long physical_block_number = block_table[block_idx];
    const int physical_block_offset = (lane % NUM_V_VECS_PER_ROW) * V_VEC_SIZE;
    const int token_idx = block_idx * BLOCK_SIZE + physical_block_offset;
    const Float_L_vec logits_vec =
        *reinterpret_cast<const Float_L_vec*>(logits + token_idx - start_token_idx);

    const scalar_t* v_ptr =
        v_cache + physical_block_number * kv_block_stride + kv_head_idx * kv_head_stride;
#pragma unroll
    for (int i = 0; i < NUM_ROWS_PER_THREAD; ++i) {
      const int row_idx = lane / NUM_V_VECS_PER_ROW + i * NUM_ROWS_PER_ITER;
      if (row_idx < HEAD_SIZE) {
        const int offset = row_idx * BLOCK_SIZE + physical_block_offset;
        V_vec v_vec = *reinterpret_cast<const V_vec*>(v_ptr + offset);
        if (block_idx == num_seq_blocks - 1) {  // slots without a token may hold NaN
          for (int j = 0; j < V_VEC_SIZE; ++j)
            if (token_idx + j >= seq_len) v_vec.elements[j] = scalar_t{};
        }
        // float32, as in Python; the original rounds weights and products to scalar_t.
        float dot = 0.0f;
        for (int j = 0; j < V_VEC_SIZE; ++j)
          dot += logits_vec.elements[j] * to_float(v_vec.elements[j]);
        accs[i] += dot;
      }
    }
  }

  // The sum over the lanes that share a row.
#pragma unroll
  for (int i = 0; i < NUM_ROWS_PER_THREAD; ++i)
    for (int mask = NUM_V_VECS_PER_ROW / 2; mask >= 1; mask /= 2)
      accs[i] += __shfl_xor_sync(ALL_LANES, accs[i], mask);
  __syncthreads();

  // The sum over the warps, as a tree.
  float* out_smem = shared_mem;
  for (int i = NUM_WARPS; i > 1; i /= 2) {
    const int mid = i / 2;
    if (warp_idx >= mid && warp_idx < i) {
      float* dst = &out_smem[(warp_idx - mid) * HEAD_SIZE];
#pragma unroll
      for (int j = 0; j < NUM_ROWS_PER_THREAD; ++j) {
        const int row_idx = lane / NUM_V_VECS_PER_ROW + j * NUM_ROWS_PER_ITER;
        if (row_idx < HEAD_SIZE && lane % NUM_V_VECS_PER_ROW == 0) dst[row_idx] = accs[j];
      }
    }
    __syncthreads();
    if (warp_idx < mid) {
      const float* src = &out_smem[warp_idx * HEAD_SIZE];
#pragma unroll
      for (int j = 0; j < NUM_ROWS_PER_THREAD; ++j) {
        const int row_idx = lane / NUM_V_VECS_PER_ROW + j * NUM_ROWS_PER_ITER;
        if (row_idx < HEAD_SIZE && lane % NUM_V_VECS_PER_ROW == 0) accs[j] += src[row_idx];
      }
    }
    __syncthreads();
  }

  // Warp 0 has the whole sum.
  if (warp_idx == 0) {
    const long long row = (seq_idx * (long long)num_heads + head_idx) * max_num_partitions;
    scalar_t* out_ptr = out + (row + partition_idx) * HEAD_SIZE;
#pragma unroll
    for (int i = 0; i < NUM_ROWS_PER_THREAD; ++i) {
      const int row_idx = lane / NUM_V_VECS_PER_ROW + i * NUM_ROWS_PER_ITER;
      if (row_idx < HEAD_SIZE && lane % NUM_V_VECS_PER_ROW == 0)
        from_float(out_ptr[row_idx], accs[i]);
    }
  }
}
