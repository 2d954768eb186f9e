// One step's attention: packed spans over the paged cache, cut into tiles of query rows.

#pragma once

#include <type_traits>
#include <vector>

#include "attention_registers.h"
#include "attention_tiles.h"
#include "products.h"
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

// The most rows that a tile of attention has.
inline int64_t most_rows() { return kProducts == Products::kTiles ? kMostRows : kRegisterRows; }

// The heads of a KV head in a tile; further heads are computed in more rounds.
inline int64_t heads_of(const Shape& shape) {
  return std::min<int64_t>(shape.heads / shape.kv_heads, most_rows());
}

// With few heads a tile takes several queries.
inline int64_t queries_of(const Shape& shape) { return most_rows() / heads_of(shape); }

// KV heads that are computed at once for one query of a span. It is all of them if each has few rows, they
// are adjacent, and there are spans enough for all threads (measured in decision 8).
inline int64_t kv_heads_at_once(const Shape& shape, const Spans& spans, int threads) {
  const bool few = shape.heads / shape.kv_heads <= kFewRows && shape.heads <= kMostRows;
  const bool shared_out = threads == 1 || spans.count >= 2 * threads;
  const bool measured = kProducts == Products::kPairs && shape.block_size == kLanes;
  return few && shared_out && measured ? shape.kv_heads : 1;
}

// Calls add(tile) for the tiles that begin with that query of a span.
template <typename Add>
void each_tile(const Shape& shape, int64_t kv, int64_t first, Add add) {
  const int64_t group = shape.heads / shape.kv_heads, heads = heads_of(shape);
  for (int64_t h = 0; h < group; h += heads) add(Tile{kv, first, h, std::min(heads, group - h)});
}

inline void add_tiles(const Shape& shape, int64_t span, int64_t first, std::vector<Work>& work) {
  for (int64_t kv = 0; kv < shape.kv_heads; ++kv)
    each_tile(shape, kv, first,
              [&](const Tile& tile) { work.push_back({static_cast<int32_t>(span), tile}); });
}

// Longest first within a span, so that the threads end together.
inline std::vector<Work> cut(const Shape& shape, const Spans& spans) {
  const int64_t queries = queries_of(shape);
  std::vector<Work> work;
  for (int64_t i = 0; i < spans.count; ++i)
    for (int64_t t = (spans.starts[i + 1] - spans.starts[i] - 1) / queries; t >= 0; --t)
      add_tiles(shape, i, t * queries, work);
  return work;
}

// The attention of these rows alone; each is the last of its span.
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
  const int64_t queries = std::min(queries_of(shape), span.queries - tile.first);
  const int rows = static_cast<int>(queries * tile.heads);
#ifdef TANDEM_AMX
  if constexpr (std::is_same_v<Number, uint16_t>)
    if (kProducts == Products::kTiles) {
      Tiles tiles;
      return attend_tile(InTiles(tiles, rows), scratch, shape, span, blocks.keys, blocks.values,
                         tile, query, out);
    }
#endif
#ifdef TANDEM_AVX512_BF16
  if constexpr (std::is_same_v<Number, uint16_t>)
    if (const int64_t group = shape.heads / shape.kv_heads; tile.heads > group)
      return kAttendHeads[group - 1](scratch, shape, span, blocks.keys, blocks.values, tile, query,
                                     out);
#endif
  kAttendTile<Number>[rows - 1](scratch, shape, span, blocks.keys, blocks.values, tile, query, out);
}

inline void attend(const Shape& shape, const Spans& spans, const Work& work, const Blocks& blocks,
                   const uint16_t* query, uint16_t* out) {
#ifdef TANDEM_AVX512_BF16
  if (kProducts != Products::kWidened)
    return attend_in<uint16_t>(shape, spans, work, blocks, query, out);
#endif
  attend_in<float>(shape, spans, work, blocks, query, out);
}

}  // namespace
