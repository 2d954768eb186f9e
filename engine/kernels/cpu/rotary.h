// Rotary embedding of queries and keys, and storing keys and values in paired blocks.

#pragma once

#include <ATen/Parallel.h>

#include <optional>

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

// One head: optional norm, then the first 2 * half dims rotated by the token's angles.
inline void rotate(const uint16_t* x, const uint16_t* weight, float eps, float shift, const float* cosine,
            const float* sine, int64_t half, int64_t size, float* out) {
  const float scale = weight ? norm_scale(x, size, eps) : 1.0f;
  for (int64_t i = 0; i < size; i += kLanes) {
    Vec v = Vec::load_bf16(x + i);
    if (weight) v = v * Vec::all(scale) * (Vec::load_bf16(weight + i) + Vec::all(shift));
    v.store(out + i);
  }
  for (int64_t i = 0; i < half; ++i) {
    const float a = out[i], b = out[i + half];
    out[i] = a * cosine[i] - b * sine[i];
    out[i + half] = b * cosine[i] + a * sine[i];
  }
}

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

// qkv [tokens, (heads + 2 kv_heads) * head_size]: rotated queries go to `query`, keys and values
// to their slots (block * block_size + offset). cosine, sine [positions, half] float32.
inline void rope_store(const at::Tensor& qkv, const at::Tensor& cosine, const at::Tensor& sine,
                const at::Tensor& positions, const at::Tensor& slots,
                const std::optional<at::Tensor>& query_norm,
                const std::optional<at::Tensor>& key_norm, double eps, double offset,
                at::Tensor& cache, at::Tensor& query) {
  const int64_t tokens = query.size(0), heads = query.size(1), size = query.size(2);
  const int64_t kv_heads = cache.size(3), block_size = cache.size(2), half = cosine.size(1);
  const int64_t block_elements = block_size * kv_heads * size;
  const uint16_t* in = bits(qkv);
  uint16_t* out = mutable_bits(query);
  uint16_t* keys = mutable_bits(cache);
  uint16_t* values = keys + cache.size(1) * block_elements;
  const auto* position = positions.const_data_ptr<int64_t>();
  const auto* slot = slots.const_data_ptr<int64_t>();
  const float* c = cosine.const_data_ptr<float>();
  const float* s = sine.const_data_ptr<float>();
  const uint16_t* qn = query_norm ? bits(*query_norm) : nullptr;
  const uint16_t* kn = key_norm ? bits(*key_norm) : nullptr;
  const float e = static_cast<float>(eps), shift = static_cast<float>(offset);
  const int64_t width = (heads + 2 * kv_heads) * size;
  at::parallel_for(0, tokens, 16, [&](int64_t begin, int64_t end) {
    alignas(64) float head[kMaxHead];
    for (int64_t t = begin; t < end; ++t) {
      const uint16_t* row = in + t * width;
      const float* cos_t = c + position[t] * half;
      const float* sin_t = s + position[t] * half;
      for (int64_t h = 0; h < heads; ++h) {
        rotate(row + h * size, qn, e, shift, cos_t, sin_t, half, size, head);
        uint16_t* to = out + (t * heads + h) * size;
        for (int64_t d = 0; d < size; d += kLanes) Vec::load(head + d).store_bf16(to + d);
      }
      const int64_t block = slot[t] / block_size, offset = slot[t] % block_size;
      for (int64_t h = 0; h < kv_heads; ++h) {
        const int64_t at_head = block * block_elements + h * block_size * size;
        rotate(row + (heads + h) * size, kn, e, shift, cos_t, sin_t, half, size, head);
        store_key(head, keys + at_head, offset, size);
        store_value(row + (heads + kv_heads + h) * size, values + at_head, offset, size);
      }
    }
  });
}

}  // namespace
