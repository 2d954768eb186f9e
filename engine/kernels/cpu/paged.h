// One step's attention: packed spans over the paged cache, in tiles that the threads share out.

#pragma once

#include <ATen/Parallel.h>

#include <vector>

#include "attention.h"

namespace {

struct Work {
  int32_t span;
  Tile tile;
};

// Heads beyond a tile's rows are taken in rounds; with few heads a tile takes several queries.
// Longest first within a span, so that the threads end together.
inline std::vector<Work> cut(const Shape& shape, const int32_t* starts, int64_t spans) {
  const int64_t group = shape.heads / shape.kv_heads;
  const int64_t heads = std::min<int64_t>(group, kMaxRows), queries = kMaxRows / heads;
  std::vector<Work> work;
  for (int64_t i = 0; i < spans; ++i)
    for (int64_t t = (starts[i + 1] - starts[i] - 1) / queries; t >= 0; --t)
      for (int64_t kv = 0; kv < shape.kv_heads; ++kv)
        for (int64_t h = 0; h < group; h += heads)
          work.push_back({static_cast<int32_t>(i),
                          {kv, t * queries, h, std::min(heads, group - h)}});
  return work;
}

// query [tokens, heads, head_size]; cache [2, blocks, block_size, kv_heads, head_size];
// tables [spans, blocks] int32; starts [spans + 1] int32 rows; positions [spans] int32.
inline void paged_attention(const at::Tensor& query, const at::Tensor& cache,
                            const at::Tensor& tables, const at::Tensor& starts,
                            const at::Tensor& positions, double scale, int64_t window,
                            double softcap, at::Tensor& out) {
  Shape shape;
  shape.heads = query.size(1);
  shape.head_size = query.size(2);
  shape.kv_heads = cache.size(3);
  shape.block_size = cache.size(2);
  shape.block_elements = shape.block_size * shape.kv_heads * shape.head_size;
  shape.scale = static_cast<float>(scale);
  shape.softcap = static_cast<float>(softcap);
  shape.window = window;
  const uint16_t* keys = bits(cache);
  const uint16_t* values = keys + cache.size(1) * shape.block_elements;
  const auto* start = starts.const_data_ptr<int32_t>();
  const auto* position = positions.const_data_ptr<int32_t>();
  const auto* table = tables.const_data_ptr<int32_t>();
  const int64_t spans = positions.size(0), width = tables.size(1);
  const auto work = cut(shape, start, spans);
  const uint16_t* q = bits(query);
  uint16_t* o = mutable_bits(out);
  int64_t keys_read = 0;
  for (const auto& item : work) keys_read += position[item.span] + item.tile.first + 1;
  const int threads = keys_read < 256 ? 1 : at::get_num_threads();
  at::parallel_for(0, threads, 1, [&](int64_t begin, int64_t end) {
    static thread_local Scratch scratch;
    for (int64_t t = begin; t < end; ++t)
      for (size_t w = t; w < work.size(); w += threads) {
        const auto& [i, tile] = work[w];
        const Span span{table + i * width, start[i], start[i + 1] - start[i], position[i]};
        const int64_t queries =
            std::min<int64_t>(kMaxRows / std::min<int64_t>(shape.heads / shape.kv_heads, kMaxRows),
                              span.queries - tile.first);
        kAttendTile[queries * tile.heads](scratch, shape, span, keys, values, tile, q, o);
      }
  });
}

}  // namespace
