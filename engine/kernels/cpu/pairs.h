// Blocks in pairs, as the kernels read them, from and to the plain order in which they travel. Within a host
// blocks are borrowed in pairs, so another order of pairs is another PROTOCOL (kv_transfer/links/proto_convert.py).
//
//   plain   [block_size][kv_heads][head_size], keys and values alike
//   keys    [kv_heads][block_size / 16][head_size / 2][16 tokens][2 dims]
//   values  [kv_heads][block_size / 2][head_size][2 tokens]

#pragma once

#include <ATen/Parallel.h>

#include <cstring>

#include "vec.h"

namespace {

// The layout of a block in the two orders.
struct Pairs {
  int64_t kv_heads, block_size, head_size;

  // Calls move(plain, paired) for the two places of each pair of dims of the keys.
  template <typename Move>
  void each_of_keys(uint32_t* plain, uint32_t* paired, Move move) const {
    const int64_t half = head_size / 2, row = kv_heads * half;
    for (int64_t head = 0; head < kv_heads; ++head)
      for (int64_t first = 0; first < block_size; first += kLanes) {
        uint32_t* from = plain + first * row + head * half;
        for (int64_t pair = 0; pair < half; ++pair, paired += kLanes)
#pragma GCC ivdep
          for (int64_t token = 0; token < kLanes; ++token)
            move(from[token * row + pair], paired[token]);
      }
  }

  // Calls move(plain, paired) for the two places of each number of the values.
  template <typename Move>
  void each_of_values(uint16_t* plain, uint16_t* paired, Move move) const {
    const int64_t row = kv_heads * head_size;
    for (int64_t head = 0; head < kv_heads; ++head)
      for (int64_t token = 0; token < block_size; token += 2, paired += 2 * head_size) {
        uint16_t* first = plain + token * row + head * head_size;
#pragma GCC ivdep
        for (int64_t dim = 0; dim < head_size; ++dim) {
          move(first[dim], paired[2 * dim]);
          move(first[row + dim], paired[2 * dim + 1]);
        }
      }
  }
};

// Calls move(plain, paired) for the two places of each of plain [2, count, block_size, kv_heads,
// head_size] and of blocks `index` [count] of the paired cache, many at a time.
template <typename Move>
void each_pair(uint16_t* plain, const at::Tensor& index, uint16_t* paired, const at::Tensor& cache,
               Move move) {
  const Pairs pairs{cache.size(3), cache.size(2), cache.size(4)};
  const int64_t count = index.size(0), elements = cache.stride(1), half = cache.stride(0);
  const auto* block = index.const_data_ptr<int64_t>();
  const auto wide = [](uint16_t* numbers) { return reinterpret_cast<uint32_t*>(numbers); };
  at::parallel_for(0, 2 * count, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      uint16_t* near = plain + i * elements;
      uint16_t* far = paired + (i / count) * half + block[i % count] * elements;
      if (i < count)
        pairs.each_of_keys(wide(near), wide(far), move);
      else
        pairs.each_of_values(near, far, move);
    }
  });
}

inline void scatter_pairs(const at::Tensor& plain, const at::Tensor& index, at::Tensor cache) {
  each_pair(const_cast<uint16_t*>(bits(plain)), index, mutable_bits(cache), cache,
            [](const auto& from, auto& to) { to = from; });
}

inline void gather_pairs(const at::Tensor& cache, const at::Tensor& index, at::Tensor plain) {
  each_pair(mutable_bits(plain), index, const_cast<uint16_t*>(bits(cache)), cache,
            [](auto& to, const auto& from) { to = from; });
}

// Blocks `sources` of one cache, [layers, 2, blocks, ...], become blocks `targets` of another one of the
// same order.
inline void copy_blocks(const at::Tensor& from, const at::Tensor& sources, at::Tensor to,
                        const at::Tensor& targets) {
  const int64_t bytes = to.stride(2) * to.element_size();
  const auto* read = static_cast<const char*>(from.const_data_ptr());
  auto* written = static_cast<char*>(to.mutable_data_ptr());
  const auto* source = sources.const_data_ptr<int64_t>();
  const auto* target = targets.const_data_ptr<int64_t>();
  for (int64_t half = 0; half < 2 * to.size(0); ++half)
    for (int64_t i = 0; i < targets.size(0); ++i)
      std::memcpy(written + (half * to.size(2) + target[i]) * bytes,
                  read + (half * from.size(2) + source[i]) * bytes, bytes);
}

}  // namespace
