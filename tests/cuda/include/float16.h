// 16-bit floats with a sign, `EXPONENT` exponent bits and the remaining fraction bits. Both formats
// of CUDA, f16 and bf16, have this form.
#pragma once
#include "cuda_runtime.h"

/// Computes in f32 and rounds once. f32 has more than twice the precision, so that sums, products,
/// quotients and square roots are correctly rounded.
template <int EXPONENT> struct Float16 {
  uint16_t bits;

  static constexpr int DIGITS = 15 - EXPONENT;   // fraction bits
  static constexpr int DROPPED = 23 - DIGITS;    // fraction bits of f32 that are dropped
  static constexpr int BIAS = (1 << (EXPONENT - 1)) - 1;
  static constexpr uint32_t MOST = (1 << EXPONENT) - 1; // infinity's exponent
  static constexpr uint32_t INFINITE = 0x7f800000;      // f32's

  Float16() = default;
  Float16(float value) : bits(nearest(value)) {}
  Float16(double value) : bits(nearest(odd(value))) {}
  Float16(int value) : Float16(double(value)) {}
  Float16(unsigned value) : Float16(double(value)) {}
  Float16(long long value) : Float16(double(value)) {}
  Float16(unsigned long long value) : Float16(double(value)) {}

  static Float16 of_bits(uint16_t bits) {
    Float16 value;
    value.bits = bits;
    return value;
  }

  operator float() const {
    uint32_t sign = uint32_t(bits & 0x8000) << 16, rest = uint32_t(bits & 0x7fff) << DROPPED;
    if (rest >> 23 == MOST) {
      rest |= INFINITE;
    } else if (rest >> 23) {
      rest += uint32_t(127 - BIAS) << 23;
    } else {
      // Subnormal: a multiple of the smallest number.
      float smallest = __uint_as_float(uint32_t(127 - BIAS + 1 - DIGITS) << 23);
      rest = EXPONENT == 8 ? rest : __float_as_uint(float(rest >> DROPPED) * smallest);
    }
    return __uint_as_float(sign | rest);
  }

  /// Rounds to nearest, ties to even. NaN becomes the bits that CUDA uses.
  static uint16_t nearest(float value) {
    uint32_t all = __float_as_uint(value), sign = all >> 16 & 0x8000, rest = all & 0x7fffffff;
    if (rest > INFINITE) return 0x7fff;
    if (rest == INFINITE) return sign | (MOST << DIGITS);
    if (EXPONENT < 8 && rest < uint32_t(128 - BIAS) << 23) {
      // Subnormal: add a power of two whose last bit has the value of the smallest number.
      float shift = __uint_as_float(uint32_t(127 - BIAS + 1 + DROPPED) << 23);
      return sign | (__float_as_uint(__uint_as_float(rest) + shift) - __float_as_uint(shift));
    }
    rest -= uint32_t(127 - BIAS) << 23;
    rest += (1u << (DROPPED - 1)) - 1 + (rest >> DROPPED & 1);
    return sign | min(rest >> DROPPED, MOST << DIGITS);
  }

  /// Rounds to odd, so that a second rounding cannot see a false tie.
  static float odd(double value) {
    float near = float(value);
    uint32_t all = __float_as_uint(near);
    if (double(near) == value || all & 1 || value != value) return near;
    bool below = __builtin_fabs(double(near)) < __builtin_fabs(value);
    return __uint_as_float(below ? all + 1 : all - 1);
  }

  Float16 operator-() const { return of_bits(bits ^ 0x8000); }
  friend Float16 operator+(Float16 a, Float16 b) { return float(a) + float(b); }
  friend Float16 operator-(Float16 a, Float16 b) { return float(a) - float(b); }
  friend Float16 operator*(Float16 a, Float16 b) { return float(a) * float(b); }
  friend Float16 operator/(Float16 a, Float16 b) { return float(a) / float(b); }
  friend Float16 &operator+=(Float16 &a, Float16 b) { return a = a + b; }
  friend Float16 &operator-=(Float16 &a, Float16 b) { return a = a - b; }
  friend Float16 &operator*=(Float16 &a, Float16 b) { return a = a * b; }
  friend Float16 &operator/=(Float16 &a, Float16 b) { return a = a / b; }
  friend bool operator==(Float16 a, Float16 b) { return float(a) == float(b); }
  friend bool operator!=(Float16 a, Float16 b) { return float(a) != float(b); }
  friend bool operator<(Float16 a, Float16 b) { return float(a) < float(b); }
  friend bool operator>(Float16 a, Float16 b) { return float(a) > float(b); }
  friend bool operator<=(Float16 a, Float16 b) { return float(a) <= float(b); }
  friend bool operator>=(Float16 a, Float16 b) { return float(a) >= float(b); }

  friend Float16 abs(Float16 a) { return of_bits(a.bits & 0x7fff); }
  friend Float16 __hmax(Float16 a, Float16 b) { return max(float(a), float(b)); }
  friend Float16 __hmin(Float16 a, Float16 b) { return min(float(a), float(b)); }
  friend bool __hisnan(Float16 a) { return isnan(float(a)); }
  friend Float16 hexp(Float16 a) { return exp(float(a)); }
  friend Float16 hlog(Float16 a) { return log(float(a)); }
  friend Float16 hsqrt(Float16 a) { return sqrt(float(a)); }
  friend Float16 hrsqrt(Float16 a) { return 1 / sqrt(float(a)); }
  friend Float16 hfloor(Float16 a) { return floor(float(a)); }
  friend Float16 hceil(Float16 a) { return ceil(float(a)); }
  friend Float16 htrunc(Float16 a) { return trunc(float(a)); }
  friend Float16 hrint(Float16 a) { return rint(float(a)); }
};

/// Two numbers, with elementwise operations.
template <class T> struct __align__(4) Pair {
  T x, y;

  Pair() = default;
  Pair(T x, T y) : x(x), y(y) {}
  friend Pair operator+(Pair a, Pair b) { return {a.x + b.x, a.y + b.y}; }
  friend Pair operator-(Pair a, Pair b) { return {a.x - b.x, a.y - b.y}; }
  friend Pair operator*(Pair a, Pair b) { return {a.x * b.x, a.y * b.y}; }
  friend Pair operator/(Pair a, Pair b) { return {a.x / b.x, a.y / b.y}; }
  friend Pair __hmax2(Pair a, Pair b) { return {__hmax(a.x, b.x), __hmax(a.y, b.y)}; }
  friend Pair __hmin2(Pair a, Pair b) { return {__hmin(a.x, b.x), __hmin(a.y, b.y)}; }
};
