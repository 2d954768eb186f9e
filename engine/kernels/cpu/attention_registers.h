// Attention's products by vector instructions, of up to `kRegisterRows` rows at once; or of few rows of
// several KV heads, each with its own keys and values.

#pragma once

#include <array>
#include <utility>

#include "attention.h"

namespace {

#ifdef TANDEM_AVX512_BF16
// sums[r][c] += the products of pair `i` of row r with each of the 16 pairs at pairs(c).
template <int R, int C, int N, typename Pairs>
void add_products(Vec (&sums)[R][C], const uint16_t (*rows)[N], int64_t i, Pairs pairs) {
  for (int r = 0; r < R; ++r) {
    uint32_t pair;
    std::memcpy(&pair, &rows[r][2 * i], sizeof pair);
    for (int c = 0; c < C; ++c) sums[r][c] = dot_pairs(sums[r][c], pair, pairs(c));
  }
}

#endif

// As above, for rows in float32.
template <int R, int C, int N, typename Pairs>
void add_products(Vec (&sums)[R][C], const float (*rows)[N], int64_t i, Pairs pairs) {
  const auto add = [&](int64_t column, auto half_of) {
    Vec halves[C];
    for (int c = 0; c < C; ++c) halves[c] = half_of(pairs(c));
    for (int r = 0; r < R; ++r)
      for (int c = 0; c < C; ++c) sums[r][c] = fma(Vec::all(rows[r][column]), halves[c], sums[r][c]);
  };
  add(2 * i, firsts_of);
  add(2 * i + 1, seconds_of);
}

// Scores of R rows, from `row` on, with G groups of 16 keys.
template <int R, int G, typename Number>
void score_groups(Scratch<Number>& s, const Shape& shape, const uint16_t* const* keys, int row,
                  int column) {
  Vec sum[R][G];
  for (int r = 0; r < R; ++r)
    for (int g = 0; g < G; ++g) sum[r][g] = Vec::zero();
  const int64_t pairs = shape.head_size / 2;
  for (int64_t d = 0; d < pairs; ++d)
    add_products(sum, &s.query[row], d, [&](int g) { return keys[g] + d * 2 * kLanes; });
  for (int r = 0; r < R; ++r)
    for (int g = 0; g < G; ++g)
      scaled(sum[r][g], shape).store(&s.scores[row + r][column + g * kLanes]);
}

// As many groups at once as the registers can hold, then the rest by halves.
template <int R, int G, typename Number>
void score(Scratch<Number>& s, const Shape& shape, const uint16_t* const* keys, int count,
           int column) {
  if constexpr (!fit(R, G) && G > 1) {
    score<R, G / 2>(s, shape, keys, count, column);
  } else {
    for (; count >= G; count -= G, keys += G, column += G * kLanes)
      score_groups<R, G>(s, shape, keys, 0, column);
    if constexpr (G > 1)
      if (count) score<R, G / 2>(s, shape, keys, count, column);
  }
}

// Groups of 16 values, and the addresses of their weights.
struct Weighed {
  const uint16_t* const* groups;
  int count, row, column;
};

// out += weights x values of R rows, for V vectors of dims from `d` on.
template <int R, int V, typename Number>
void weigh_dims(Scratch<Number>& s, const Shape& shape, const Weighed& of, int64_t d) {
  Vec sum[R][V];
  for (int r = 0; r < R; ++r)
    for (int v = 0; v < V; ++v) sum[r][v] = Vec::load(&s.out[of.row + r][d + v * kLanes]);
  for (int g = 0; g < of.count; ++g)
    for (int pair = 0; pair < kLanes / 2; ++pair) {
      const uint16_t* values = of.groups[g] + (pair * shape.head_size + d) * 2;
      add_products(sum, &s.weights[of.row], (of.column + g * kLanes) / 2 + pair,
                   [&](int v) { return values + v * 2 * kLanes; });
    }
  for (int r = 0; r < R; ++r)
    for (int v = 0; v < V; ++v) sum[r][v].store(&s.out[of.row + r][d + v * kLanes]);
}

template <int R, typename Number>
void weigh(Scratch<Number>& s, const Shape& shape, const Weighed& of) {
  int64_t d = 0;
  if constexpr (fit(R, 4))
    for (; d + 4 * kLanes <= shape.head_size; d += 4 * kLanes) weigh_dims<R, 4>(s, shape, of, d);
  if constexpr (fit(R, 2))
    for (; d + 2 * kLanes <= shape.head_size; d += 2 * kLanes) weigh_dims<R, 2>(s, shape, of, d);
  for (; d < shape.head_size; d += kLanes) weigh_dims<R, 1>(s, shape, of, d);
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
    ::weigh<R>(s, shape, {values, count, 0, 0});
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

#ifdef TANDEM_AVX512_BF16
// Products of R rows of each of several KV heads. A block of 16 tokens has its heads one behind the other,
// and they are read in that order, because a core prefetches memory that is read in order.
template <int R>
struct HeadsInRegisters {
  int kv_heads;
  int rows() const { return R * kv_heads; }
  void score(Scratch<uint16_t>& s, const Shape& shape, const uint16_t* const* keys,
             int count) const {
    each(shape, keys, count, [&](const uint16_t* const* group, int row, int column) {
      score_groups<R, 1>(s, shape, group, row, column);
    });
  }
  void weigh(Scratch<uint16_t>& s, const Shape& shape, const uint16_t* const* values,
             int count) const {
    each(shape, values, count, [&](const uint16_t* const* group, int row, int column) {
      ::weigh<R>(s, shape, {group, 1, row, column});
    });
  }

 private:
  // Calls part(group, its first row, its first column) as they lie in memory.
  template <typename Part>
  void each(const Shape& shape, const uint16_t* const* groups, int count, Part part) const {
    for (int g = 0; g < count; ++g)
      for (int h = 0; h < kv_heads; ++h) {
        const uint16_t* group = groups[g] + h * shape.block_size * shape.head_size;
        part(&group, h * R, g * kLanes);
      }
  }
};

// R heads share a KV head.
template <int R>
void attend_heads(Scratch<uint16_t>& s, const Shape& shape, const Span& span, const uint16_t* keys,
                  const uint16_t* values, const Tile& tile, const uint16_t* query, uint16_t* out) {
  const HeadsInRegisters<R> heads{static_cast<int>(tile.heads / R)};
  attend_tile(heads, s, shape, span, keys, values, tile, query, out);
}

template <int... R>
constexpr std::array<AttendTile<uint16_t>, sizeof...(R)> attend_heads_of(
    std::integer_sequence<int, R...>) {
  return {attend_heads<R + 1>...};
}
// By heads that share a KV head, less one.
constexpr auto kAttendHeads = attend_heads_of(std::make_integer_sequence<int, kFewRows>());
#endif

}  // namespace
