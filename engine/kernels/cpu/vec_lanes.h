// 16 floats in an array that the compiler vectorises; see vec.h.

#pragma once

namespace {

// As with AVX2; which numbers are in registers is the compiler's.
constexpr int kRegisterRows = 6;
constexpr bool fit(int rows, int vectors) { return (rows + 1) * vectors < 8; }

struct Vec {
  float v[kLanes];
  static Vec all(float x) {
    Vec r;
    for (int i = 0; i < kLanes; ++i) r.v[i] = x;
    return r;
  }
  static Vec zero() { return all(0.0f); }
  static Vec load(const float* p) {
    Vec r;
    for (int i = 0; i < kLanes; ++i) r.v[i] = p[i];
    return r;
  }
  static Vec load_bf16(const uint16_t* p) {
    Vec r;
    for (int i = 0; i < kLanes; ++i) r.v[i] = to_float(p[i]);
    return r;
  }
  void store(float* p) const {
    for (int i = 0; i < kLanes; ++i) p[i] = v[i];
  }
  void store_bf16(uint16_t* p) const {
    for (int i = 0; i < kLanes; ++i) p[i] = to_bits(v[i]);
  }
  float sum() const {
    float r = 0;
    for (int i = 0; i < kLanes; ++i) r += v[i];
    return r;
  }
  float max() const { return *std::max_element(v, v + kLanes); }
};
#define TANDEM_LANES(name, expression)         \
  inline Vec name(Vec a, Vec b) {              \
    Vec r;                                     \
    for (int i = 0; i < kLanes; ++i)           \
      r.v[i] = expression;                     \
    return r;                                  \
  }
TANDEM_LANES(operator+, a.v[i] + b.v[i])
TANDEM_LANES(operator-, a.v[i] - b.v[i])
TANDEM_LANES(operator*, a.v[i] * b.v[i])
TANDEM_LANES(operator/, a.v[i] / b.v[i])
TANDEM_LANES(larger, std::max(a.v[i], b.v[i]))
#undef TANDEM_LANES
inline Vec fma(Vec a, Vec b, Vec c) { return a * b + c; }

// The first and the second of each of 16 pairs.
inline Vec firsts_of(const uint16_t* pairs) {
  Vec r;
  for (int i = 0; i < kLanes; ++i) r.v[i] = to_float(pairs[2 * i]);
  return r;
}
inline Vec seconds_of(const uint16_t* pairs) {
  Vec r;
  for (int i = 0; i < kLanes; ++i) r.v[i] = to_float(pairs[2 * i + 1]);
  return r;
}

// The parts of exp2, see vec.h: 0 for all that is below -200, -infinity too.
inline Vec within_exponents(Vec x) { return larger(x, Vec::all(-200.0f)); }
inline Vec nearest(Vec x) {
  for (int i = 0; i < kLanes; ++i) x.v[i] = std::nearbyint(x.v[i]);
  return x;
}
inline Vec times_power(Vec p, Vec n) {
  for (int i = 0; i < kLanes; ++i) p.v[i] *= std::exp2(n.v[i]);
  return p;
}

}  // namespace
