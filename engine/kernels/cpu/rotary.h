// Rotary embedding of queries and keys, and storing keys and values in paired blocks.

#pragma once

#include "attention.h"

namespace {

inline float norm_scale(const uint16_t* x, int64_t size, float eps) {
  Vec sum = Vec::zero();
  for (int64_t i = 0; i < size; i += kLanes) {
    const Vec v = Vec::load_bf16(x + i);
    sum = fma(v, v, sum);
  }
  return 1.0f / std::sqrt(sum.sum() / size + eps);
}

// The rotation of one token's heads: cosine, sine [positions, half] float32; weights of a norm before
// it, or null. The first 2 * half dims of a head turn.
struct Rotary {
  const float *cosine, *sine;
  int64_t half, size;
  const uint16_t *query_norm, *key_norm;
  float eps, shift;

  void turn(const uint16_t* x, const uint16_t* weight, int64_t position, float* out) const {
    const float scale = weight ? norm_scale(x, size, eps) : 1.0f;
    for (int64_t i = 0; i < size; i += kLanes) {
      Vec v = Vec::load_bf16(x + i);
      if (weight) v = v * Vec::all(scale) * (Vec::load_bf16(weight + i) + Vec::all(shift));
      v.store(out + i);
    }
    const float *c = cosine + position * half, *s = sine + position * half;
    for (int64_t i = 0; i < half; ++i) {
      const float a = out[i], b = out[i + half];
      out[i] = a * c[i] - b * s[i];
      out[i + half] = b * c[i] + a * s[i];
    }
  }
};

inline void store_key(const float* key, uint16_t* head, int64_t offset, int64_t size) {
  uint16_t* group = head + (offset / kLanes) * kLanes * size + (offset % kLanes) * 2;
  for (int64_t d = 0; d < size; d += 2) {
    group[d * kLanes] = to_bits(key[d]);
    group[d * kLanes + 1] = to_bits(key[d + 1]);
  }
}

inline void store_value(const uint16_t* value, uint16_t* head, int64_t offset, int64_t size) {
  uint16_t* pair = head + (offset / 2) * 2 * size + offset % 2;
  for (int64_t d = 0; d < size; ++d) pair[2 * d] = value[d];
}

// A layer's blocks, in pairs.
struct Blocks {
  uint16_t *keys, *values;
};

// One token and one KV head of qkv's row [heads + 2 kv_heads][size]: the queries of that head's group,
// turned, go to `query` [heads][size], key and value to `slot` (block * block_size + offset).
inline void turn_and_store(const uint16_t* row, const Shape& shape, const Rotary& rotary,
                           int64_t kv, int64_t position, int64_t slot, const Blocks& blocks,
                           uint16_t* query) {
  alignas(64) float head[kMaxHead];
  const int64_t size = shape.head_size, group = shape.heads / shape.kv_heads;
  for (int64_t h = kv * group; h < (kv + 1) * group; ++h) {
    rotary.turn(row + h * size, rotary.query_norm, position, head);
    for (int64_t d = 0; d < size; d += kLanes)
      Vec::load(head + d).store_bf16(query + h * size + d);
  }
  const int64_t offset = slot % shape.block_size;
  const int64_t at_head =
      slot / shape.block_size * shape.block_elements + kv * shape.block_size * size;
  rotary.turn(row + (shape.heads + kv) * size, rotary.key_norm, position, head);
  store_key(head, blocks.keys + at_head, offset, size);
  store_value(row + (shape.heads + shape.kv_heads + kv) * size, blocks.values + at_head, offset,
              size);
}

}  // namespace
