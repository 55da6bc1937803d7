// Tests every 16-bit float, and values between neighbours, against the definition of the format.
//
// Does not include <cmath>, because the kernels define functions with the same names.
#include "../include/cuda_bf16.h"
#include "../include/cuda_fp16.h"
#include <cstdio>

template <class T> static const char *const NAME = "__half";
template <> const char *const NAME<__nv_bfloat16> = "__nv_bfloat16";

template <class T> static void assert_bits(double value, unsigned got, unsigned want) {
  if (got == want) return;
  printf("%s(%a) has the bits %04x, not %04x\n", NAME<T>, value, got, want);
  __builtin_exit(1);
}

/// The value of `bits` by the definition of the format.
template <class T> static double value_of(unsigned bits) {
  int exponent = bits >> T::DIGITS & ((1 << (15 - T::DIGITS)) - 1);
  double digits = __builtin_ldexp(double(bits & ((1u << T::DIGITS) - 1)), -T::DIGITS);
  double value = exponent ? __builtin_ldexp(1 + digits, exponent - T::BIAS)
                          : __builtin_ldexp(digits, 1 - T::BIAS);
  return bits & 0x8000 ? -value : value;
}

/// Checks that `value` rounds to the lower of two neighbours, to the upper one, or to the even one.
/// Above the largest finite number, the neighbour would be the next power of two, whose bits are
/// those of infinity.
template <class T> static unsigned nearest(double value, unsigned lower) {
  double below = value - value_of<T>(lower), above = value_of<T>(lower + 1) - value;
  return below < above ? lower : below > above ? lower + 1 : lower + (lower & 1);
}

template <class T> static void check(double value, unsigned lower) {
  unsigned want = nearest<T>(value, lower);
  assert_bits<T>(value, T(value).bits, want);
  assert_bits<T>(-value, T(-value).bits, want | 0x8000);
  float single = float(value);
  if (double(single) == value) assert_bits<T>(value, T(single).bits, want);
}

template <class T> static void check_all() {
  const unsigned INFINITE = T(__builtin_inff()).bits;
  if (INFINITE != ((1u << (15 - T::DIGITS)) - 1) << T::DIGITS) __builtin_abort();
  for (unsigned bits = 0; bits < 0x10000; bits++) {
    float value = T::of_bits(uint16_t(bits));
    unsigned magnitude = bits & 0x7fff;
    if (magnitude > INFINITE) {
      if (!__builtin_isnan(value)) __builtin_abort();
      assert_bits<T>(value, T(value).bits, 0x7fff);
    } else {
      assert_bits<T>(value, T(value).bits, bits);
      bool right =
          magnitude == INFINITE ? __builtin_isinf(value) : double(value) == value_of<T>(bits);
      if (!right || !__builtin_signbit(value) != !(bits >> 15)) __builtin_abort();
    }
  }
  for (unsigned lower = 0; lower < INFINITE; lower++) {
    double from = value_of<T>(lower), to = value_of<T>(lower + 1), middle = (from + to) / 2;
    // A tie, its neighbours in f32 and in f64, and points in between.
    const double values[] = {middle,
                             __builtin_nextafterf(float(middle), 0),
                             __builtin_nextafterf(float(middle), __builtin_inff()),
                             __builtin_nextafter(middle, 0),
                             __builtin_nextafter(middle, __builtin_inf()),
                             from + (to - from) / 3,
                             from + (to - from) * 0.9};
    for (double value : values)
      if (value >= from && value <= to) check<T>(value, lower);
  }
}

int main() {
  check_all<__half>();
  check_all<__nv_bfloat16>();
  float halves[] = {float(__half(2049)), float(__half(1) / __half(3)), float(__half(65519.0))};
  if (halves[0] != 2048 || halves[1] != 0x1.554p-2f || halves[2] != 65504) __builtin_abort();
  printf("floats of 16 bits are right\n");
}
