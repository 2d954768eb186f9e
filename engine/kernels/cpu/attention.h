// Attention over paired blocks: the online softmax of FlashAttention (Dao et al., 2022), in base 2,
// over tiles of query rows that share a KV head. `Number` is the type of query and weight rows in the
// products with keys and values (attention_registers.h, attention_tiles.h): bfloat16, or float where
// that is faster.

#pragma once

#include "vec.h"

namespace {

constexpr int kChunk = 128;  // keys per round of the online softmax
constexpr int kMostRows = 32;  // of a tile, for any kind of products
constexpr int kFewRows = 4;    // of a tile whose products wait for memory
constexpr int kMaxHead = 256;

struct Span {
  const int32_t* table;
  int64_t first_row;  // of its queries among the packed tokens
  int64_t queries;
  int64_t position;  // of its first query
};

struct Shape {
  int64_t heads, kv_heads, head_size, block_size, block_elements;
  float scale;     // of the scores
  float softcap;   // 0: none
  int64_t window;  // 0: none
};

// Row r of a tile: query first + r / heads of the span, and head first_head + r % heads of the heads that
// share KV head `kv`. A tile of more heads has the heads of the next KV heads, too.
struct Tile {
  int64_t kv, first, first_head, heads;
};

template <typename Number>
struct Scratch {
  alignas(64) float scores[kMostRows][kChunk];
  alignas(64) Number weights[kMostRows][kChunk];
  alignas(64) float out[kMostRows][kMaxHead];
  alignas(64) Number query[kMostRows][kMaxHead];
  float top[kMostRows], total[kMostRows];
  int64_t position[kMostRows];
};

inline void keep(Vec numbers, float* in) { numbers.store(in); }
inline void keep(Vec numbers, uint16_t* in) { numbers.store_bf16(in); }

inline Vec capped(Vec score, float cap) {
  const Vec one = Vec::all(1.0f), two = Vec::all(2.0f);
  // tanh(x) = 1 - 2 / (1 + e^2x)
  return Vec::all(cap) * (one - two / (one + exp(score * Vec::all(2.0f / cap))));
}

// A product of a query and a key as a score, in units of log2.
inline Vec scaled(Vec product, const Shape& shape) {
  Vec score = product * Vec::all(shape.scale);
  if (shape.softcap != 0.0f) score = capped(score, shape.softcap);
  return score * Vec::all(kLog2E);
}

template <typename Number>
void mask_group(Scratch<Number>& s, const Shape& shape, int rows, int64_t first_key, int column) {
  for (int r = 0; r < rows; ++r)
    for (int i = 0; i < kLanes; ++i) {
      const int64_t key = first_key + i;
      const bool seen = key <= s.position[r] && (!shape.window || key > s.position[r] - shape.window);
      if (!seen) s.scores[r][column + i] = -INFINITY;
    }
}

// Turns the chunk's scores into weights, and scales the earlier sums to the new maximum.
template <typename Number>
void soften(Scratch<Number>& s, const Shape& shape, int rows, int columns) {
  for (int r = 0; r < rows; ++r) {
    Vec top = Vec::load(s.scores[r]);
    for (int c = kLanes; c < columns; c += kLanes) top = larger(top, Vec::load(&s.scores[r][c]));
    const float highest = std::max(s.top[r], top.max());
    if (highest == -INFINITY) {  // no key was seen so far
      std::memset(s.weights[r], 0, columns * sizeof(Number));
      continue;
    }
    const float shrink = highest == s.top[r] ? 1.0f : std::exp2(s.top[r] - highest);
    Vec sum = Vec::zero();
    for (int c = 0; c < columns; c += kLanes) {
      const Vec weight = exp2(Vec::load(&s.scores[r][c]) - Vec::all(highest));
      sum = sum + weight;
      keep(weight, &s.weights[r][c]);
    }
    s.total[r] = s.total[r] * shrink + sum.sum();
    s.top[r] = highest;
    if (shrink != 1.0f)
      for (int64_t d = 0; d < shape.head_size; d += kLanes)
        (Vec::load(&s.out[r][d]) * Vec::all(shrink)).store(&s.out[r][d]);
  }
}

// Few rows finish a key before the next key has come from memory, so it is prefetched.
inline void prefetch(const uint16_t* const* groups, int count, int64_t elements) {
  for (int g = 0; g < count; ++g)
    for (int64_t i = 0; i < elements; i += 32) __builtin_prefetch(groups[g] + i);
}

// Computes the rows of a tile over all keys that they see; `by` makes the products.
template <typename Number, typename By>
void attend_tile(const By& by, Scratch<Number>& s, const Shape& shape, const Span& span,
                 const uint16_t* keys, const uint16_t* values, const Tile& tile,
                 const uint16_t* query, uint16_t* out) {
  const int64_t group = shape.heads / shape.kv_heads;
  const int count = by.rows();
  int64_t rows[kMostRows];
  int64_t last_key = 0, first_key = INT64_MAX;
  for (int r = 0; r < count; ++r) {
    const int64_t token = tile.first + r / tile.heads;
    const int64_t head = tile.kv * group + tile.first_head + r % tile.heads;
    rows[r] = ((span.first_row + token) * shape.heads + head) * shape.head_size;
    for (int64_t d = 0; d < shape.head_size; d += kLanes)
      keep(Vec::load_bf16(query + rows[r] + d), &s.query[r][d]);
    s.position[r] = span.position + token;
    s.top[r] = -INFINITY;
    s.total[r] = 0;
    std::memset(s.out[r], 0, shape.head_size * sizeof(float));
    last_key = std::max(last_key, s.position[r]);
    first_key = std::min(first_key, shape.window ? s.position[r] - shape.window + 1 : 0);
  }
  const int64_t groups = last_key / kLanes + 1;
  const int64_t per_block = shape.block_size / kLanes;
  const int64_t head_offset = tile.kv * shape.block_size * shape.head_size;
  const int64_t group_elements = kLanes * shape.head_size;
  const uint16_t *chunk_keys[kChunk / kLanes], *chunk_values[kChunk / kLanes];
  // Chunks begin at multiples of their size, so that a key is in the same chunk for every tile.
  for (int64_t g = std::max<int64_t>(first_key, 0) / kChunk * (kChunk / kLanes); g < groups;) {
    const int64_t from = g;
    const int taken = static_cast<int>(std::min<int64_t>(kChunk / kLanes, groups - g));
    for (int i = 0; i < taken; ++i, ++g) {
      const int64_t offset = span.table[g / per_block] * shape.block_elements + head_offset +
                             (g % per_block) * group_elements;
      chunk_keys[i] = keys + offset;
      chunk_values[i] = values + offset;
    }
    if (count <= kFewRows) prefetch(chunk_values, taken, group_elements);
    by.score(s, shape, chunk_keys, taken);
    for (int i = 0; i < taken; ++i) {
      const int64_t key = (from + i) * kLanes;
      if (key + kLanes - 1 > s.position[0] || (shape.window && key <= last_key - shape.window))
        mask_group(s, shape, count, key, i * kLanes);
    }
    soften(s, shape, count, taken * kLanes);
    by.weigh(s, shape, chunk_values, taken);
  }
  for (int r = 0; r < count; ++r) {
    const Vec scale = Vec::all(1.0f / s.total[r]);
    for (int64_t d = 0; d < shape.head_size; d += kLanes)
      (Vec::load(&s.out[r][d]) * scale).store_bf16(out + rows[r] + d);
  }
}

}  // namespace
