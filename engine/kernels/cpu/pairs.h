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

// Calls move(plain, paired, ...) with the address of each number in plain
// [2, count, block_size, kv_heads, head_size] and in blocks `index` [count] of the paired cache.
template <typename Move>
void each_pair(const uint16_t* plain, const at::Tensor& index, const uint16_t* paired,
               const at::Tensor& cache, Move move) {
  const Pairs pairs{cache.size(3), cache.size(2), cache.size(4)};
  const int64_t count = index.size(0), elements = cache.stride(1), half = cache.stride(0);
  const auto* block = index.const_data_ptr<int64_t>();
  at::parallel_for(0, 2 * count, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const uint16_t* near = plain + i * elements;
      const uint16_t* far = paired + (i / count) * half + block[i % count] * elements;
      pairs.each(i < count, [&](int64_t p, int64_t q) { move(near + p, far + q); });
    }
  });
}

inline void scatter_pairs(const at::Tensor& plain, const at::Tensor& index, at::Tensor cache) {
  each_pair(bits(plain), index, mutable_bits(cache), cache,
            [](const uint16_t* p, const uint16_t* q) { *const_cast<uint16_t*>(q) = *p; });
}

inline void gather_pairs(const at::Tensor& cache, const at::Tensor& index, at::Tensor plain) {
  each_pair(mutable_bits(plain), index, bits(cache), cache,
            [](const uint16_t* p, const uint16_t* q) { *const_cast<uint16_t*>(p) = *q; });
}

}  // namespace
