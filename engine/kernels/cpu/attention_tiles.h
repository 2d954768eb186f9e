// Attention's products in AMX's tiles: of two groups of 16 keys, or of 32 dims of the values, at once.

#pragma once

#include "attention.h"
#include "tiles.h"

#ifdef TANDEM_AMX
namespace {

static_assert(kMostRows <= kTwoTiles);
static_assert(kChunk / kLanes % 2 == 0, "an odd number of groups leaves room for one more");

// Products of up to 32 rows.
class InTiles {
 public:
  InTiles(Tiles& tiles, int rows) : tiles_(tiles), rows_(rows) {}
  int rows() const { return rows_; }

  void score(Scratch<uint16_t>& s, const Shape& shape, const uint16_t* const* keys,
             int count) const {
    const bool lower = rows_ > kTileSide;
    tiles_.shape(rows_);
    for (int g = 0; g < count; g += 2) {
      // The right sums of the last of an odd number of groups are not used.
      const uint16_t *left = keys[g], *right = keys[g + 1 < count ? g + 1 : g];
      clear_sums();
      for (int64_t d = 0; d < shape.head_size; d += kTileInputs)
        add_to_sums(&s.query[0][d], kMaxHead, lower, left + d * kLanes, right + d * kLanes,
                    2 * kLanes);
      store_sums(&s.scores[0][g * kLanes], kChunk, lower);
    }
    for (int r = 0; r < rows_; ++r)
      for (int c = 0; c < count * kLanes; c += kLanes)
        scaled(Vec::load(&s.scores[r][c]), shape).store(&s.scores[r][c]);
  }

  // Groups of 16 tokens are not adjacent, so a tile has 16 of its 32 inputs here.
  void weigh(Scratch<uint16_t>& s, const Shape& shape, const uint16_t* const* values,
             int count) const {
    const bool lower = rows_ > kTileSide;
    tiles_.shape<kLanes>(rows_);
    for (int64_t d = 0; d < shape.head_size; d += 2 * kLanes) {
      load_sums(&s.out[0][d], kMaxHead, lower);
      for (int g = 0; g < count; ++g)
        add_to_sums(&s.weights[0][g * kLanes], kChunk, lower, values[g] + 2 * d,
                    values[g] + 2 * (d + kLanes), 2 * shape.head_size);
      store_sums(&s.out[0][d], kMaxHead, lower);
    }
  }

 private:
  Tiles& tiles_;
  const int rows_;
};

}  // namespace
#endif
