// 16 floats in one AVX-512 register; see vec.h.

#pragma once

namespace {

constexpr int kRegisterRows = 12;
constexpr bool fit(int rows, int vectors) { return rows * vectors <= 24; }

struct Vec {
  __m512 v;
  static Vec zero() { return {_mm512_setzero_ps()}; }
  static Vec all(float x) { return {_mm512_set1_ps(x)}; }
  static Vec load(const float* p) { return {_mm512_loadu_ps(p)}; }
  static Vec load_bf16(const uint16_t* p) {
    auto half = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16))};
  }
  void store(float* p) const { _mm512_storeu_ps(p, v); }
  void store_bf16(uint16_t* p) const {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), (__m256i)_mm512_cvtneps_pbh(v));
  }
  float sum() const { return _mm512_reduce_add_ps(v); }
  float max() const { return _mm512_reduce_max_ps(v); }
};
inline Vec operator+(Vec a, Vec b) { return {_mm512_add_ps(a.v, b.v)}; }
inline Vec operator-(Vec a, Vec b) { return {_mm512_sub_ps(a.v, b.v)}; }
inline Vec operator*(Vec a, Vec b) { return {_mm512_mul_ps(a.v, b.v)}; }
inline Vec operator/(Vec a, Vec b) { return {_mm512_div_ps(a.v, b.v)}; }
inline Vec fma(Vec a, Vec b, Vec c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
inline Vec larger(Vec a, Vec b) { return {_mm512_max_ps(a.v, b.v)}; }

// acc += the dot products of one pair of queries with 16 pairs.
inline Vec dot_pairs(Vec acc, uint32_t query, const uint16_t* pairs) {
  auto q = (__m512bh)_mm512_set1_epi32(static_cast<int>(query));
  auto k = (__m512bh)_mm512_loadu_si512(pairs);
  return {_mm512_dpbf16_ps(acc.v, q, k)};
}

// The first and the second of each of 16 pairs.
inline Vec firsts_of(const uint16_t* pairs) {
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_loadu_si512(pairs), 16))};
}
inline Vec seconds_of(const uint16_t* pairs) {
  auto high = _mm512_set1_epi32(static_cast<int>(0xffff0000u));
  return {_mm512_castsi512_ps(_mm512_and_si512(_mm512_loadu_si512(pairs), high))};
}

// The parts of exp2, see vec.h: 0 for all that is below -200, -infinity too.
inline Vec within_exponents(Vec x) { return {_mm512_max_ps(x.v, _mm512_set1_ps(-200.0f))}; }
inline Vec nearest(Vec x) { return {_mm512_roundscale_ps(x.v, 0)}; }
inline Vec times_power(Vec p, Vec n) { return {_mm512_scalef_ps(p.v, n.v)}; }

}  // namespace
