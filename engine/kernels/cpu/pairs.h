// Blocks in pairs, as the kernels read them, from and to the plain order in which they travel.
//
//   plain   [block_size][kv_heads][head_size], keys and values alike
//   keys    [kv_heads][block_size / 16][head_size / 2][16 tokens][2 dims]
//   values  [kv_heads][block_size / 2][head_size][2 tokens]

#pragma once

#include <ATen/Parallel.h>

#include "vec.h"

namespace {

// Where a paired block keeps a number.
struct Pairs {
  int64_t kv_heads, block_size, head_size;

  int64_t key(int64_t token, int64_t head, int64_t dim) const {
    return head * block_size * head_size + (token / kLanes) * kLanes * head_size +
           (dim / 2) * 2 * kLanes + (token % kLanes) * 2 + dim % 2;
  }
  int64_t value(int64_t token, int64_t head, int64_t dim) const {
    return head * block_size * head_size + (token / 2) * 2 * head_size + dim * 2 + token % 2;
  }

  // Calls move(plain offset, paired offset) for each number of a block, of keys or of values.
  template <typename Move>
  void each(bool keys, Move move) const {
    for (int64_t token = 0; token < block_size; ++token)
      for (int64_t head = 0; head < kv_heads; ++head) {
        const int64_t plain = (token * kv_heads + head) * head_size;
        for (int64_t dim = 0; dim < head_size; ++dim)
          move(plain + dim, keys ? key(token, head, dim) : value(token, head, dim));
      }
  }
};

inline Pairs pairs_of(const at::Tensor& cache) {
  return {cache.size(3), cache.size(2), cache.size(4)};
}

// plain [2, count, block_size, kv_heads, head_size] -> blocks `index` [count] of the paired cache.
inline void scatter_pairs(const at::Tensor& plain, const at::Tensor& index, at::Tensor cache) {
  const Pairs pairs = pairs_of(cache);
  const int64_t count = index.size(0), elements = cache.stride(1);
  const auto* block = index.const_data_ptr<int64_t>();
  const uint16_t* from = bits(plain);
  uint16_t* to = mutable_bits(cache);
  at::parallel_for(0, 2 * count, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const uint16_t* source = from + i * elements;
      uint16_t* target = to + (i / count) * cache.stride(0) + block[i % count] * elements;
      pairs.each(i < count, [&](int64_t p, int64_t q) { target[q] = source[p]; });
    }
  });
}

// Blocks `index` [count] of the paired cache -> plain [2, count, block_size, kv_heads, head_size].
inline void gather_pairs(const at::Tensor& cache, const at::Tensor& index, at::Tensor plain) {
  const Pairs pairs = pairs_of(cache);
  const int64_t count = index.size(0), elements = cache.stride(1);
  const auto* block = index.const_data_ptr<int64_t>();
  const uint16_t* from = bits(cache);
  uint16_t* to = mutable_bits(plain);
  at::parallel_for(0, 2 * count, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const uint16_t* source = from + (i / count) * cache.stride(0) + block[i % count] * elements;
      uint16_t* target = to + i * elements;
      pairs.each(i < count, [&](int64_t p, int64_t q) { target[p] = source[q]; });
    }
  });
}

}  // namespace
