// 16 floats at a time, a Vec: in registers where the processor has them, see the files for each.
// `kRegisterRows` is the most rows of a product that are made at once. fit(rows, vectors) tells whether the
// registers can hold the sums of so many rows and vectors, beside the factors.

#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

namespace {

using bf16 = at::BFloat16;
constexpr int kLanes = 16;

inline float to_float(uint16_t bits) {
  uint32_t wide = static_cast<uint32_t>(bits) << 16;
  float value;
  std::memcpy(&value, &wide, 4);
  return value;
}

inline uint16_t to_bits(float value) {
  uint32_t wide;
  std::memcpy(&wide, &value, 4);
  return static_cast<uint16_t>((wide + 0x7fff + ((wide >> 16) & 1)) >> 16);
}

}  // namespace

#if defined(__AVX512BF16__) && defined(__AVX512BW__)
#include <immintrin.h>
#define TANDEM_AVX512_BF16 1
#include "vec_avx512.h"
#elif defined(__AVX2__) && defined(__FMA__)
#include <immintrin.h>
#include "vec_avx2.h"
#else
#include "vec_lanes.h"
#endif

namespace {

// 2^x: a power of two times a polynomial of degree 5 (Taylor's) on [-1/2, 1/2], relative error
// below 4e-6.
inline Vec exp2(Vec x) {
  const Vec bounded = within_exponents(x), n = nearest(bounded), r = bounded - n;
  Vec p = Vec::all(1.3333558e-3f);
  for (const float next : {9.6181291e-3f, 5.5504109e-2f, 2.4022651e-1f, 6.9314718e-1f, 1.0f})
    p = fma(p, r, Vec::all(next));
  return times_power(p, n);
}

constexpr float kLog2E = 1.44269504f;
inline Vec exp(Vec x) { return exp2(x * Vec::all(kLog2E)); }

const uint16_t* bits(const at::Tensor& t) { return reinterpret_cast<const uint16_t*>(t.const_data_ptr<bf16>()); }
uint16_t* mutable_bits(at::Tensor& t) { return reinterpret_cast<uint16_t*>(t.mutable_data_ptr<bf16>()); }

}  // namespace
