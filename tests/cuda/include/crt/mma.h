// Multiplication of small matrices by a warp (CUDA's wmma).
//
// CUDA does not specify which lane holds which elements of a fragment. Here every lane holds the
// whole matrix, and stores its share of it.
#pragma once
#include "../cuda_runtime.h"

namespace nvcuda {
namespace wmma {

struct matrix_a;
struct matrix_b;
struct accumulator;
struct row_major;
struct col_major;
enum layout_t { mem_row_major, mem_col_major };
namespace precision {
struct tf32;
}

/// Rounds f32 to ten fraction bits, with ties away from zero (cvt.rna.tf32.f32).
inline float __float_to_tf32(float value) {
  uint32_t bits = __float_as_uint(value);
  if ((bits & 0x7f800000) != 0x7f800000) bits = (bits + 0x1000) & ~0x1fffu;
  return __uint_as_float(bits);
}

// Elements are stored row by row as f32, which can represent all types of elements.
template <int ROWS, int COLUMNS> struct Elements {
  static constexpr int rows = ROWS, columns = COLUMNS, num_elements = ROWS * COLUMNS;
  float x[num_elements];
};
template <class Use, int M, int N, int K, class T, class Layout = void> struct fragment;
template <int M, int N, int K, class T, class Layout>
struct fragment<matrix_a, M, N, K, T, Layout> : Elements<M, K> {};
template <int M, int N, int K, class T, class Layout>
struct fragment<matrix_b, M, N, K, T, Layout> : Elements<K, N> {};
template <int M, int N, int K, class T>
struct fragment<accumulator, M, N, K, T, void> : Elements<M, N> {};

template <int M, int N, int K, class T, class Number>
void fill_fragment(fragment<accumulator, M, N, K, T> &f, Number value) {
  for (float &element : f.x) element = float(T(value));
}

/// Checks the alignment that the instructions require of addresses and strides.
template <class Stored> void assert_aligned(const Stored *at, unsigned stride) {
  if (uintptr_t(at) % 32 || stride * sizeof(Stored) % 16)
    runtime->fail("wmma: a pointer that is not at 32 bytes, or a stride that is not at 16");
}

template <class Fragment, class Stored>
void load(Fragment &f, const Stored *from, unsigned stride, bool by_rows) {
  assert_aligned(from, stride);
  __syncwarp();
  for (int i = 0; i < Fragment::num_elements; i++) {
    unsigned row = i / Fragment::columns, column = i % Fragment::columns;
    f.x[i] = float(from[by_rows ? row * stride + column : column * stride + row]);
  }
  __syncwarp();
}
template <class Use, int M, int N, int K, class T, class Stored>
void load_matrix_sync(fragment<Use, M, N, K, T, row_major> &f, const Stored *from,
                      unsigned stride) {
  load(f, from, stride, true);
}
template <class Use, int M, int N, int K, class T, class Stored>
void load_matrix_sync(fragment<Use, M, N, K, T, col_major> &f, const Stored *from,
                      unsigned stride) {
  load(f, from, stride, false);
}
template <int M, int N, int K, class T, class Stored>
void load_matrix_sync(fragment<accumulator, M, N, K, T> &f, const Stored *from, unsigned stride,
                      layout_t layout) {
  load(f, from, stride, layout == mem_row_major);
}

template <int M, int N, int K, class T, class Stored>
void store_matrix_sync(Stored *to, const fragment<accumulator, M, N, K, T> &f, unsigned stride,
                       layout_t layout) {
  assert_aligned(to, stride);
  __syncwarp();
  for (int i = lane(); i < M * N; i += LANES) {
    unsigned row = i / N, column = i % N;
    to[layout == mem_row_major ? row * stride + column : column * stride + row] = Stored(f.x[i]);
  }
  __syncwarp();
}

/// A factor as the multiplication uses it: for tf32, bits beyond its precision are cut off.
template <class T> float factor(float value) { return value; }
template <> inline float factor<precision::tf32>(float value) {
  return __uint_as_float(__float_as_uint(value) & ~0x1fffu);
}

template <int M, int N, int K, class T, class LayoutA, class LayoutB, class Sum>
void mma_sync(fragment<accumulator, M, N, K, Sum> &d,
              const fragment<matrix_a, M, N, K, T, LayoutA> &a,
              const fragment<matrix_b, M, N, K, T, LayoutB> &b,
              const fragment<accumulator, M, N, K, Sum> &c) {
  for (int row = 0; row < M; row++) {
    float sums[N];
    for (int column = 0; column < N; column++) sums[column] = c.x[row * N + column];
    for (int k = 0; k < K; k++)
      for (int column = 0; column < N; column++)
        sums[column] += factor<T>(a.x[row * K + k]) * factor<T>(b.x[k * N + column]);
    for (int column = 0; column < N; column++) d.x[row * N + column] = float(Sum(sums[column]));
  }
}

} // namespace wmma
} // namespace nvcuda
