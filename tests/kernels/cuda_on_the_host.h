// CUDA C++ on a CPU: one std::thread for each thread of a thread block, one block after another.
// Just what paged_attention.cu needs. Shared memory is NaN before each block.
#include <algorithm>
#include <barrier>
#include <cmath>
#include <cstring>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#define __global__
#define __device__
#define __shared__  // a static or global variable is shared by all threads as it is
using std::min;

struct Three {
  int x, y, z;
};
static Three gridDim, blockIdx;
static thread_local Three threadIdx;

// What the threads of a block, and of each of its warps, meet in.
struct Warp {
  std::barrier<> barrier{32};
  float values[2][32];
};
static std::unique_ptr<std::barrier<>> block_barrier;
static std::vector<std::unique_ptr<Warp>> warps;
static thread_local int shuffles;

inline void __syncthreads() { block_barrier->arrive_and_wait(); }

// The values of one shuffle must not overwrite those of the one before, which somebody may still
// read: two rows take turns. Who writes a row for the second time has been waited for in between.
inline float shuffled(float value, int from) {
  Warp& warp = *warps[threadIdx.x / 32];
  float* values = warp.values[shuffles++ % 2];
  values[threadIdx.x % 32] = value;
  warp.barrier.arrive_and_wait();
  return values[from];
}
inline float __shfl_xor_sync(unsigned, float value, int mask) {
  return shuffled(value, threadIdx.x % 32 ^ mask);
}
inline float __shfl_sync(unsigned, float value, int lane) { return shuffled(value, lane); }

inline float __expf(float x) { return std::exp(x); }
inline float __fdividef(float a, float b) { return a / b; }
inline unsigned __float_as_uint(float value) {
  unsigned bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}
inline float __uint_as_float(unsigned bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

// float16 by arithmetic: not every C++ compiler has the type.
inline float half_to_float(unsigned short bits) {
  const int exponent = bits >> 10 & 31, mantissa = bits & 1023;
  const float sign = bits >> 15 ? -1.0f : 1.0f;
  if (exponent == 31) return mantissa ? NAN : sign * INFINITY;
  return sign * std::ldexp(float(exponent ? mantissa + 1024 : mantissa), std::max(exponent, 1) - 25);
}
inline unsigned short float_to_half(float value) {
  const unsigned short sign = std::signbit(value) ? 0x8000 : 0;
  const float size = std::fabs(value);
  if (std::isnan(value)) return 0x7FFF;
  if (size >= 65520.0f) return sign | 0x7C00;
  const int exponent = size < 0x1p-14f ? -14 : std::ilogb(size);
  // The mantissa in steps of the last place, to the nearest, ties to even.
  const int steps = std::nearbyint(std::ldexp(size, 10 - exponent));
  return sign | (steps + ((exponent + 14) << 10));
}
struct float16;  // of the kernel's file, which leaves these two to us
float to_float(float16 element);
void from_float(float16& element, float value);

// A kernel on its grid; arguments[i] points at argument i. Returns how many thread blocks wrote
// behind the dynamic shared memory that they had asked for.
constexpr int MAX_SHARED_BYTES = 48 * 1024;

template <typename... Parameters, size_t... i>
int run_grid(void (*kernel)(Parameters...), Three grid, int num_threads, float* shared,
             int shared_bytes, void** arguments, std::index_sequence<i...>) {
  const float* asked = shared + shared_bytes / sizeof(float);
  const float* end = shared + MAX_SHARED_BYTES / sizeof(float);
  int overruns = 0;
  gridDim = grid;
  for (int block = 0; block < grid.x * grid.y * grid.z; ++block) {
    blockIdx = {block % grid.x, block / grid.x % grid.y, block / grid.x / grid.y};
    std::fill(shared, const_cast<float*>(end), NAN);
    block_barrier = std::make_unique<std::barrier<>>(num_threads);
    warps.clear();
    for (int warp = 0; warp < num_threads / 32; ++warp) warps.push_back(std::make_unique<Warp>());
    std::vector<std::thread> threads;
    for (int thread = 0; thread < num_threads; ++thread)
      threads.emplace_back([=] {
        threadIdx = {thread, 0, 0};
        kernel(*static_cast<Parameters*>(arguments[i])...);
      });
    for (std::thread& thread : threads) thread.join();
    overruns += !std::all_of(asked, end, [](float x) { return std::isnan(x); });
  }
  return overruns;
}

template <typename... Parameters>
int on_the_host(void (*kernel)(Parameters...), Three grid, int num_threads, float* shared,
                int shared_bytes, void** arguments) {
  return run_grid(kernel, grid, num_threads, shared, shared_bytes, arguments,
                  std::index_sequence_for<Parameters...>());
}
