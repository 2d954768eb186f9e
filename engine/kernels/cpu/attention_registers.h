// Attention's products by vector instructions, of up to 12 rows at once with what they meet.

#pragma once

#include <array>
#include <utility>

#include "attention.h"

namespace {

constexpr int kRegisterRows = std::min(12, kSums);

#ifdef TANDEM_AVX512_BF16
// sums[r][c] += the products of pair `i` of row r with each of the 16 pairs at pairs(c).
template <int R, int C, int N, typename Pairs>
void add_products(Vec (&sums)[R][C], const uint16_t (&rows)[kMostRows][N], int64_t i, Pairs pairs) {
  for (int r = 0; r < R; ++r) {
    uint32_t pair;
    std::memcpy(&pair, &rows[r][2 * i], sizeof pair);
    for (int c = 0; c < C; ++c) sums[r][c] = dot_pairs(sums[r][c], pair, pairs(c));
  }
}

#endif

// The same of rows in float32.
template <int R, int C, int N, typename Pairs>
void add_products(Vec (&sums)[R][C], const float (&rows)[kMostRows][N], int64_t i, Pairs pairs) {
  const auto add = [&](int64_t column, auto half_of) {
    Vec halves[C];
    for (int c = 0; c < C; ++c) halves[c] = half_of(pairs(c));
    for (int r = 0; r < R; ++r)
      for (int c = 0; c < C; ++c) sums[r][c] = fma(Vec::all(rows[r][column]), halves[c], sums[r][c]);
  };
  add(2 * i, firsts_of);
  add(2 * i + 1, seconds_of);
}

// Scores of R rows with G groups of 16 keys.
template <int R, int G, typename Number>
void score_groups(Scratch<Number>& s, const Shape& shape, const uint16_t* const* keys, int column) {
  Vec sum[R][G];
  for (int r = 0; r < R; ++r)
    for (int g = 0; g < G; ++g) sum[r][g] = Vec::zero();
  const int64_t pairs = shape.head_size / 2;
  for (int64_t d = 0; d < pairs; ++d)
    add_products(sum, s.query, d, [&](int g) { return keys[g] + d * 2 * kLanes; });
  for (int r = 0; r < R; ++r)
    for (int g = 0; g < G; ++g)
      scaled(sum[r][g], shape).store(&s.scores[r][column + g * kLanes]);
}

// As many groups at once as there are registers for, then the rest by halves.
template <int R, int G, typename Number>
void score(Scratch<Number>& s, const Shape& shape, const uint16_t* const* keys, int count,
           int column) {
  if constexpr (R * G > kSums && G > 1) {
    score<R, G / 2>(s, shape, keys, count, column);
  } else {
    for (; count >= G; count -= G, keys += G, column += G * kLanes)
      score_groups<R, G>(s, shape, keys, column);
    if constexpr (G > 1)
      if (count) score<R, G / 2>(s, shape, keys, count, column);
  }
}

// out += weights x values, for V vectors of dims from `d` on.
template <int R, int V, typename Number>
void weigh_dims(Scratch<Number>& s, const Shape& shape, const uint16_t* const* groups, int count,
                int64_t d) {
  Vec sum[R][V];
  for (int r = 0; r < R; ++r)
    for (int v = 0; v < V; ++v) sum[r][v] = Vec::load(&s.out[r][d + v * kLanes]);
  for (int g = 0; g < count; ++g)
    for (int pair = 0; pair < kLanes / 2; ++pair) {
      const uint16_t* values = groups[g] + (pair * shape.head_size + d) * 2;
      add_products(sum, s.weights, g * kLanes / 2 + pair,
                   [&](int v) { return values + v * 2 * kLanes; });
    }
  for (int r = 0; r < R; ++r)
    for (int v = 0; v < V; ++v) sum[r][v].store(&s.out[r][d + v * kLanes]);
}

template <int R, typename Number>
void weigh(Scratch<Number>& s, const Shape& shape, const uint16_t* const* groups, int count) {
  int64_t d = 0;
  if constexpr (R * 4 <= kSums)
    for (; d + 4 * kLanes <= shape.head_size; d += 4 * kLanes)
      weigh_dims<R, 4>(s, shape, groups, count, d);
  if constexpr (R * 2 <= kSums)
    for (; d + 2 * kLanes <= shape.head_size; d += 2 * kLanes)
      weigh_dims<R, 2>(s, shape, groups, count, d);
  for (; d < shape.head_size; d += kLanes) weigh_dims<R, 1>(s, shape, groups, count, d);
}

// Products of R rows in registers.
template <int R>
struct InRegisters {
  static constexpr int rows() { return R; }
  template <typename Number>
  void score(Scratch<Number>& s, const Shape& shape, const uint16_t* const* keys,
             int count) const {
    ::score<R, kChunk / kLanes>(s, shape, keys, count, 0);
  }
  template <typename Number>
  void weigh(Scratch<Number>& s, const Shape& shape, const uint16_t* const* values,
             int count) const {
    ::weigh<R>(s, shape, values, count);
  }
};

template <typename Number, int R>
void attend_registers(Scratch<Number>& s, const Shape& shape, const Span& span,
                      const uint16_t* keys, const uint16_t* values, const Tile& tile,
                      const uint16_t* query, uint16_t* out) {
  attend_tile(InRegisters<R>(), s, shape, span, keys, values, tile, query, out);
}

template <typename Number>
using AttendTile = void (*)(Scratch<Number>&, const Shape&, const Span&, const uint16_t*,
                            const uint16_t*, const Tile&, const uint16_t*, uint16_t*);

template <typename Number, int... R>
constexpr std::array<AttendTile<Number>, sizeof...(R)> attend_tiles(
    std::integer_sequence<int, R...>) {
  return {attend_registers<Number, R + 1>...};
}
// By rows of the tile, less one.
template <typename Number>
constexpr auto kAttendTile = attend_tiles<Number>(std::make_integer_sequence<int, kRegisterRows>());

}  // namespace
