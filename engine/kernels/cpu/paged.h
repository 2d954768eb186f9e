// One step's attention: packed spans over the paged cache, cut into tiles of query rows.

#pragma once

#include <vector>

#include "rotary.h"

namespace {

// The packed spans of a step; see PackedBatch.
struct Spans {
  const int64_t *positions, *slots;  // of each token
  const int32_t *tables, *starts, *firsts;
  int64_t tokens, count, width;  // width: of a span's row in the tables
};

struct Work {
  int32_t span;
  Tile tile;
};

// Adds the tiles of a span that begin with that query. Heads beyond a tile's rows are taken in rounds.
inline void add_tiles(const Shape& shape, int64_t span, int64_t first, std::vector<Work>& work) {
  const int64_t group = shape.heads / shape.kv_heads, heads = std::min<int64_t>(group, kMaxRows);
  for (int64_t kv = 0; kv < shape.kv_heads; ++kv)
    for (int64_t h = 0; h < group; h += heads)
      work.push_back({static_cast<int32_t>(span), {kv, first, h, std::min(heads, group - h)}});
}

// With few heads a tile takes several queries. Longest first within a span, so that the threads end
// together.
inline std::vector<Work> cut(const Shape& shape, const Spans& spans) {
  const int64_t queries = kMaxRows / std::min<int64_t>(shape.heads / shape.kv_heads, kMaxRows);
  std::vector<Work> work;
  for (int64_t i = 0; i < spans.count; ++i)
    for (int64_t t = (spans.starts[i + 1] - spans.starts[i] - 1) / queries; t >= 0; --t)
      add_tiles(shape, i, t * queries, work);
  return work;
}

// The same for these rows alone; each is the last of its span.
inline std::vector<Work> cut(const Shape& shape, const Spans& spans,
                             const std::vector<int64_t>& rows) {
  std::vector<Work> work;
  int64_t i = 0;
  for (const int64_t row : rows) {
    while (spans.starts[i + 1] <= row) ++i;
    add_tiles(shape, i, row - spans.starts[i], work);
  }
  return work;
}

// query, out [tokens, heads, head_size].
template <typename Number>
void attend_in(const Shape& shape, const Spans& spans, const Work& work, const Blocks& blocks,
               const uint16_t* query, uint16_t* out) {
  static thread_local Scratch<Number> scratch;
  const int64_t i = work.span;
  const Tile& tile = work.tile;
  const Span span{spans.tables + i * spans.width, spans.starts[i],
                  spans.starts[i + 1] - spans.starts[i], spans.firsts[i]};
  const int64_t most = kMaxRows / std::min<int64_t>(shape.heads / shape.kv_heads, kMaxRows);
  const int64_t queries = std::min(most, span.queries - tile.first);
  kAttendTile<Number>[queries * tile.heads - 1](scratch, shape, span, blocks.keys, blocks.values,
                                                tile, query, out);
}

inline void attend(const Shape& shape, const Spans& spans, const Work& work, const Blocks& blocks,
                   const uint16_t* query, uint16_t* out) {
#ifdef TANDEM_AVX512_BF16
  if (kWidened) return attend_in<float>(shape, spans, work, blocks, query, out);
#endif
  attend_in<uint16_t>(shape, spans, work, blocks, query, out);
}

}  // namespace
