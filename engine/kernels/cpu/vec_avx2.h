// 16 floats in two AVX2 registers; see vec.h.

#pragma once

namespace {

constexpr int kRegisterRows = 6;
// In 16 registers, two for each Vec: sums, vectors, a number of a row, and what takes pairs apart.
constexpr bool fit(int rows, int vectors) { return 2 * (rows + 1) * vectors + 2 <= 16; }

struct Vec {
  __m256 low, high;
  static Vec all(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
  static Vec zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
  static Vec load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
  static Vec load_bf16(const uint16_t* p) { return {half_of(p), half_of(p + 8)}; }
  void store(float* p) const {
    _mm256_storeu_ps(p, low);
    _mm256_storeu_ps(p + 8, high);
  }
  void store_bf16(uint16_t* p) const {
    // Packs within each half of a register, so that its quarters come out as 0 2 1 3.
    const __m256i packed = _mm256_packus_epi32(rounded(low), rounded(high));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm256_permute4x64_epi64(packed, 0xd8));
  }
  float sum() const {
    const __m256 eight = _mm256_add_ps(low, high);
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    return four[0] + four[1] + (four[2] + four[3]);
  }
  float max() const {
    const __m256 eight = _mm256_max_ps(low, high);
    const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    return std::max(std::max(four[0], four[1]), std::max(four[2], four[3]));
  }

 private:
  static __m256 half_of(const uint16_t* p) {
    const auto eight = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(eight), 16));
  }
  // As to_bits does it, in the lower half of each number's 32 bits.
  static __m256i rounded(__m256 v) {
    const __m256i wide = _mm256_castps_si256(v);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(wide, 16), _mm256_set1_epi32(1));
    const __m256i up = _mm256_add_epi32(_mm256_set1_epi32(0x7fff), odd);
    return _mm256_srli_epi32(_mm256_add_epi32(wide, up), 16);
  }
};
inline Vec operator+(Vec a, Vec b) {
  return {_mm256_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high)};
}
inline Vec operator-(Vec a, Vec b) {
  return {_mm256_sub_ps(a.low, b.low), _mm256_sub_ps(a.high, b.high)};
}
inline Vec operator*(Vec a, Vec b) {
  return {_mm256_mul_ps(a.low, b.low), _mm256_mul_ps(a.high, b.high)};
}
inline Vec operator/(Vec a, Vec b) {
  return {_mm256_div_ps(a.low, b.low), _mm256_div_ps(a.high, b.high)};
}
inline Vec larger(Vec a, Vec b) {
  return {_mm256_max_ps(a.low, b.low), _mm256_max_ps(a.high, b.high)};
}
inline Vec fma(Vec a, Vec b, Vec c) {
  return {_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high)};
}

// The first and the second of each of 16 pairs.
inline Vec firsts_of(const uint16_t* pairs) {
  const auto* p = reinterpret_cast<const __m256i*>(pairs);
  return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_loadu_si256(p), 16)),
          _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_loadu_si256(p + 1), 16))};
}
inline Vec seconds_of(const uint16_t* pairs) {
  const auto* p = reinterpret_cast<const __m256i*>(pairs);
  const auto upper = _mm256_set1_epi32(static_cast<int>(0xffff0000u));
  return {_mm256_castsi256_ps(_mm256_and_si256(_mm256_loadu_si256(p), upper)),
          _mm256_castsi256_ps(_mm256_and_si256(_mm256_loadu_si256(p + 1), upper))};
}

// The parts of exp2, see vec.h: 0 below -126.5, infinity from 127.5 on.
inline Vec within_exponents(Vec x) {
  return {_mm256_min_ps(_mm256_max_ps(x.low, _mm256_set1_ps(-127.0f)), _mm256_set1_ps(128.0f)),
          _mm256_min_ps(_mm256_max_ps(x.high, _mm256_set1_ps(-127.0f)), _mm256_set1_ps(128.0f))};
}
inline Vec nearest(Vec x) {
  constexpr int kNearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  return {_mm256_round_ps(x.low, kNearest), _mm256_round_ps(x.high, kNearest)};
}
// 2^n by its exponent's bits: 0 at -127, infinity at 128.
inline __m256 power(__m256 n) {
  const auto exponent = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
  return _mm256_castsi256_ps(_mm256_slli_epi32(exponent, 23));
}
inline Vec times_power(Vec p, Vec n) { return p * Vec{power(n.low), power(n.high)}; }

}  // namespace
