// The parts of CUDA C++ that CubeCL generates, for g++. Each thread of a block is a fiber of the
// driver.
//
// A function that is missing here leads to a compiler error with its name. This header does not
// include C++'s standard library, which would take longer to compile than most kernels.
#pragma once
#include "runtime.h"
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __restrict__ __restrict
#define __grid_constant__
#define __launch_bounds__(...)
#define __align__(bytes) __attribute__((aligned(bytes)))
// Only `extern __shared__` is supported: see compile.cpp.
#define __shared__

struct uint3 {
  unsigned x, y, z;
};
inline uint3 make_uint3(unsigned x, unsigned y, unsigned z) { return {x, y, z}; }

// The driver finds these by name in the compiled library of a kernel.
#pragma GCC visibility push(default)
extern "C" {
uint3 threadIdx, blockIdx, blockDim, gridDim;
// The limit of a block on an H100, and 64 bytes behind it that detect writes past the end.
__attribute__((aligned(1024))) unsigned char dynamic_shared_mem[232448 + 64];
Runtime *runtime;
}
#pragma GCC visibility pop
static const unsigned warpSize = LANES;

// Barriers and exchange between threads.

inline unsigned lane() {
  return (threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z)) % LANES;
}
inline void __syncthreads() { runtime->block_barrier(); }
inline void __syncwarp(unsigned lanes = ~0u) { runtime->warp_barrier(lanes); }
// One thread runs at a time, and sees everything that the others wrote.
inline void __threadfence() {}

/// The value of another lane. The second barrier keeps every slot until all lanes have read.
template <class T> T exchange(unsigned lanes, T value, unsigned from) {
  static_assert(sizeof(T) <= SLOT, "a slot holds it");
  memcpy(runtime->warp_slots() + lane() * SLOT, &value, sizeof value);
  runtime->warp_barrier(lanes);
  T other;
  memcpy(&other, runtime->warp_slots() + from * SLOT, sizeof other);
  runtime->warp_barrier(lanes);
  return other;
}
template <class T> T __shfl_sync(unsigned lanes, T value, int from) {
  return exchange(lanes, value, unsigned(from) % LANES);
}
template <class T> T __shfl_xor_sync(unsigned lanes, T value, int mask) {
  return exchange(lanes, value, (lane() ^ unsigned(mask)) % LANES);
}
template <class T> T __shfl_up_sync(unsigned lanes, T value, unsigned delta) {
  return exchange(lanes, value, lane() >= delta ? lane() - delta : lane());
}
template <class T> T __shfl_down_sync(unsigned lanes, T value, unsigned delta) {
  return exchange(lanes, value, lane() + delta < LANES ? lane() + delta : lane());
}
inline unsigned __ballot_sync(unsigned lanes, int is) {
  unsigned votes = 0;
  runtime->warp_slots()[lane() * SLOT] = is != 0;
  runtime->warp_barrier(lanes);
  for (unsigned other = 0; other < LANES; other++)
    if (lanes >> other & 1) votes |= unsigned(runtime->warp_slots()[other * SLOT] == 1) << other;
  runtime->warp_barrier(lanes);
  return votes;
}
inline int __any_sync(unsigned lanes, int is) { return __ballot_sync(lanes, is) != 0; }
inline int __all_sync(unsigned lanes, int is) { return __ballot_sync(lanes, !is) == 0; }

// No other fiber runs between the read and the write.
template <class T> T atomicExch(T *at, T value) {
  T old = *at;
  *at = value;
  return old;
}
template <class T> T atomicAdd(T *at, T value) { return atomicExch(at, T(*at + value)); }
template <class T> T atomicSub(T *at, T value) { return atomicExch(at, T(*at - value)); }
template <class T> T atomicMax(T *at, T value) { return atomicExch(at, *at > value ? *at : value); }
template <class T> T atomicMin(T *at, T value) { return atomicExch(at, *at < value ? *at : value); }
template <class T> T atomicAnd(T *at, T value) { return atomicExch(at, T(*at & value)); }
template <class T> T atomicOr(T *at, T value) { return atomicExch(at, T(*at | value)); }
template <class T> T atomicXor(T *at, T value) { return atomicExch(at, T(*at ^ value)); }
template <class T> T atomicCAS(T *at, T expected, T value) {
  return atomicExch(at, *at == expected ? value : *at);
}

// Arithmetic. Functions that CUDA approximates are exact here, so tolerances must allow for more.

inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __clz(int x) { return x ? __builtin_clz(x) : 32; }
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline unsigned __umulhi(unsigned a, unsigned b) { return uint64_t(a) * b >> 32; }
inline unsigned __brev(unsigned x) {
  unsigned reversed = 0;
  for (int bit = 0; bit < 32; bit++) reversed |= (x >> bit & 1) << (31 - bit);
  return reversed;
}

inline int min(int a, int b) { return a < b ? a : b; }
inline int max(int a, int b) { return a > b ? a : b; }
inline unsigned min(unsigned a, unsigned b) { return a < b ? a : b; }
inline unsigned max(unsigned a, unsigned b) { return a > b ? a : b; }
inline unsigned long long min(unsigned long long a, unsigned long long b) { return a < b ? a : b; }
inline unsigned long long max(unsigned long long a, unsigned long long b) { return a > b ? a : b; }
// Return the other argument if one is NaN.
inline float min(float a, float b) { return __builtin_fminf(a, b); }
inline float max(float a, float b) { return __builtin_fmaxf(a, b); }

#define UNARY(name)                                                                                \
  inline float name(float x) { return __builtin_##name##f(x); }                                    \
  inline double name(double x) { return __builtin_##name(x); }
UNARY(exp) UNARY(log) UNARY(log1p) UNARY(sqrt) UNARY(sin) UNARY(cos) UNARY(tan) UNARY(tanh)
UNARY(erf) UNARY(floor) UNARY(ceil) UNARY(trunc) UNARY(rint)
#undef UNARY
inline float abs(float x) { return __builtin_fabsf(x); }
inline int abs(int x) { return x < 0 ? -x : x; }
inline float fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
inline float powf(float x, float y) { return __builtin_powf(x, y); }
inline float rsqrt(float x) { return 1 / sqrt(x); }
inline bool isnan(float x) { return __builtin_isnan(x); }
inline bool isinf(float x) { return __builtin_isinf(x); }
inline float __expf(float x) { return exp(x); }
inline float __logf(float x) { return log(x); }
inline float __sinf(float x) { return sin(x); }
inline float __cosf(float x) { return cos(x); }
inline float __tanhf(float x) { return tanh(x); }
inline float __powf(float x, float y) { return powf(x, y); }
inline float __fdividef(float x, float y) { return x / y; }
inline float __frcp_rn(float x) { return 1 / x; }
inline float __fsqrt_rn(float x) { return sqrt(x); }
inline float __frsqrt_rn(float x) { return 1 / sqrt(x); }

inline float __uint_as_float(unsigned x) {
  float value;
  memcpy(&value, &x, sizeof value);
  return value;
}
inline unsigned __float_as_uint(float x) {
  unsigned bits;
  memcpy(&bits, &x, sizeof bits);
  return bits;
}
inline float __int_as_float(int x) { return __uint_as_float(unsigned(x)); }
inline int __float_as_int(float x) { return int(__float_as_uint(x)); }

// How the driver calls a kernel: with a pointer to each parameter.

template <size_t...> struct Indices {};
template <size_t count, size_t... all>
struct IndicesBelow : IndicesBelow<count - 1, count - 1, all...> {};
template <size_t... all> struct IndicesBelow<0, all...> { typedef Indices<all...> Type; };

template <class... Parameters, size_t... index>
void call(void (*kernel)(Parameters...), void **parameters, Indices<index...>) {
  kernel(*static_cast<Parameters *>(parameters[index])...);
}
template <class... Parameters> void call(void (*kernel)(Parameters...), void **parameters) {
  call(kernel, parameters, typename IndicesBelow<sizeof...(Parameters)>::Type());
}
