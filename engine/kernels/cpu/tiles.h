// AMX: sums of 16 rows with 16 outputs over 32 inputs in one instruction. Panels (panels.h) and paired
// blocks (pairs.h) have their numbers in the order that it takes.

#pragma once

#include "vec.h"

namespace {
constexpr int kTileInputs = 32;  // numbers of bfloat16 in a tile's row
}

#if defined(__AMX_TILE__) && defined(__AMX_BF16__) && defined(TANDEM_AVX512_BF16)
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <utility>
#define TANDEM_AMX 1

namespace {

constexpr int kTileSide = 16;    // rows of a tile, and numbers of float32 in its row
constexpr int kTwoTiles = 2 * kTileSide;

// Whether Linux lets this process use tiles, which must be requested (ARCH_REQ_XCOMP_PERM).
inline bool ask_for_tiles() {
  constexpr int kRequest = 0x1023, kTileData = 18;
  return syscall(SYS_arch_prctl, kRequest, kTileData) == 0;
}

// The use of the registers of a thread, for 1 to 32 rows:
//   0 1   sums of the upper rows with left and right outputs
//   2 3   of the lower rows
//   4 5   upper and lower rows, `inputs` of each
//   6 7   left and right weights
struct alignas(64) TileShapes {
  uint8_t palette = 1, first_row = 0, none[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {};

  constexpr TileShapes(int count, int inputs) {
    const int upper = count < kTileSide ? count : kTileSide, lower = count - upper;
    for (const int tile : {0, 1, 4}) rows[tile] = static_cast<uint8_t>(upper);
    for (const int tile : {2, 3, 5}) rows[tile] = static_cast<uint8_t>(lower ? lower : 1);
    for (const int tile : {6, 7}) rows[tile] = static_cast<uint8_t>(inputs / 2);
    for (const int tile : {4, 5}) row_bytes[tile] = static_cast<uint16_t>(inputs * 2);
  }
};

template <int... N>
constexpr std::array<TileShapes, sizeof...(N)> shapes_of(std::integer_sequence<int, N...>,
                                                         int inputs) {
  return {TileShapes(N + 1, inputs)...};
}
template <int inputs>
constexpr auto kTileShapes = shapes_of(std::make_integer_sequence<int, kTwoTiles>(), inputs);

// The tiles of a thread, for the lifetime of this object.
class Tiles {
 public:
  Tiles() = default;
  Tiles(const Tiles&) = delete;
  Tiles& operator=(const Tiles&) = delete;
  ~Tiles() {
    if (now_) _tile_release();
  }

  // Sets the shape for that many rows. Their content is lost if the shape changes.
  template <int inputs = kTileInputs>
  void shape(int rows) {
    // The compiler does not know what tiles are loaded from: all that was written is in memory now.
    asm volatile("" ::: "memory");
    const TileShapes* wanted = &kTileShapes<inputs>[rows - 1];
    if (std::exchange(now_, wanted) != wanted) _tile_loadconfig(wanted);
  }

 private:
  const TileShapes* now_ = nullptr;
};

inline void clear_sums() {
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
}

// Sums of 32 outputs a row, rows `stride` numbers apart.
inline void load_sums(const float* from, int64_t stride, bool lower) {
  const int64_t row = stride * sizeof(float);
  _tile_loadd(0, from, row);
  _tile_loadd(1, from + kTileSide, row);
  if (!lower) return;
  _tile_loadd(2, from + kTileSide * stride, row);
  _tile_loadd(3, from + kTileSide * stride + kTileSide, row);
}

inline void store_sums(float* to, int64_t stride, bool lower) {
  const int64_t row = stride * sizeof(float);
  _tile_stored(0, to, row);
  _tile_stored(1, to + kTileSide, row);
  if (!lower) return;
  _tile_stored(2, to + kTileSide * stride, row);
  _tile_stored(3, to + kTileSide * stride + kTileSide, row);
}

// Adds to the sums the products of these rows, `stride` numbers apart, with left and right weights, whose
// pairs of inputs are `pair` numbers apart.
inline void add_to_sums(const uint16_t* rows, int64_t stride, bool lower, const uint16_t* left,
                        const uint16_t* right, int64_t pair) {
  const int64_t row = stride * sizeof(uint16_t), step = pair * sizeof(uint16_t);
  _tile_loadd(4, rows, row);
  _tile_loadd(6, left, step);
  _tile_dpbf16ps(0, 4, 6);
  _tile_loadd(7, right, step);
  _tile_dpbf16ps(1, 4, 7);
  if (!lower) return;
  _tile_loadd(5, rows + kTileSide * stride, row);
  _tile_dpbf16ps(2, 5, 6);
  _tile_dpbf16ps(3, 5, 7);
}

}  // namespace
#endif
