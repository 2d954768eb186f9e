// Matrix products with weights in panels of 32 outputs, read from memory once and in order.
//
//   weight  [outputs][inputs]  ->  panels  [outputs / 32][inputs / 2][32 outputs][2 inputs]
//
// so that two 512-bit loads feed two bfloat16 dot products for each row of the input, and 16 pairs of 16
// outputs are a tile of AMX.

#pragma once

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <array>
#include <type_traits>
#include <utility>
#include <vector>

#include "products.h"
#include "team.h"

namespace {

constexpr int kPanel = 2 * kLanes;
// Rows of input that stay in a core's cache while panels go by; with AMX a panel comes more slowly than
// it is multiplied.
constexpr int64_t kBlockRows = 96, kTiledBlockRows = 256;
// The most rows in float32 whose sums with a whole panel the registers hold.
constexpr int kWholeRows = fit(kRegisterRows, 2) ? kRegisterRows : 2;
static_assert(fit(kWholeRows, 2) && (kWholeRows == kRegisterRows || !fit(kWholeRows + 1, 2)));
// How far ahead lines of weights are prefetched if all rows are one tile of pairs (decision 8).
constexpr int kNearRows = 4;
constexpr int64_t kNearBytes = 4096, kFarBytes = 8192;  // with no more rows than that, and with more

struct Panels {
  const uint16_t* data;
  int64_t outputs, inputs;

  int64_t count() const { return (outputs + kPanel - 1) / kPanel; }
  const uint16_t* panel(int64_t p) const { return data + p * inputs * kPanel; }
};

// A tile of the product: rows x 32, in floats.
struct Sums {
  alignas(64) float at[kRegisterRows][kPanel];
};

// Lines that will be read next and are prefetched: into the first cache if `soon`, else into the second.
struct Ahead {
  const char* from;
  int64_t lines;
  bool soon = false;

  void ask(int64_t line) const {
    if (soon)
      __builtin_prefetch(from + line * 64, 0, 3);
    else
      __builtin_prefetch(from + line * 64, 0, 2);
  }
};

#ifdef TANDEM_AVX512_BF16
// Sums of R rows of x (`stride` apart) with a panel, as dot products of pairs.
template <int R>
void multiply_tile(const uint16_t* x, int64_t stride, const uint16_t* panel, int64_t inputs,
                   const Ahead& ahead, Sums& sums) {
  Vec low[R], high[R];
  for (int r = 0; r < R; ++r) low[r] = high[r] = Vec::zero();
  const int64_t pairs = inputs / 2;
  int64_t asked = 0;
  // Two pairs at a time, as there are more rows than registers for their addresses.
  for (int64_t d = 0; d < pairs; d += 2, panel += 4 * kPanel) {
    for (; asked * pairs < ahead.lines * d; ++asked) ahead.ask(asked);
    for (int r = 0; r < R; ++r) {
      const auto* row = reinterpret_cast<const uint32_t*>(x + r * stride) + d;
      low[r] = dot_pairs(low[r], row[0], panel);
      high[r] = dot_pairs(high[r], row[0], panel + kPanel);
      low[r] = dot_pairs(low[r], row[1], panel + 2 * kPanel);
      high[r] = dot_pairs(high[r], row[1], panel + 3 * kPanel);
    }
  }
  for (int r = 0; r < R; ++r) {
    low[r].store(sums.at[r]);
    high[r].store(sums.at[r] + kLanes);
  }
}

#endif

// Sums of R rows in float32 with V vectors of a panel's outputs, whose pairs are taken apart as they are
// read.
template <int R, int V>
void multiply_vectors(const float* x, int64_t stride, const uint16_t* panel, int64_t inputs,
                      const Ahead& ahead, float* sums) {
  Vec sum[R][V];
  for (int r = 0; r < R; ++r)
    for (int v = 0; v < V; ++v) sum[r][v] = Vec::zero();
  const auto add = [&](int64_t d, auto numbers_of) {
    Vec weights[V];
    for (int v = 0; v < V; ++v) weights[v] = numbers_of(panel + v * kPanel);
    for (int r = 0; r < R; ++r)
      for (int v = 0; v < V; ++v) sum[r][v] = fma(Vec::all(x[r * stride + d]), weights[v], sum[r][v]);
  };
  int64_t asked = 0;
  for (int64_t d = 0; d < inputs; d += 2, panel += 2 * kPanel) {
    for (; asked * inputs < ahead.lines * d; ++asked) ahead.ask(asked);
    add(d, firsts_of);
    add(d + 1, seconds_of);
  }
  for (int r = 0; r < R; ++r)
    for (int v = 0; v < V; ++v) sum[r][v].store(sums + r * kPanel + v * kLanes);
}

// As above, with all outputs of a panel, at once or one half after the other.
template <int R>
void multiply_tile(const float* x, int64_t stride, const uint16_t* panel, int64_t inputs,
                   const Ahead& ahead, Sums& sums) {
  if constexpr (fit(R, 2)) {
    multiply_vectors<R, 2>(x, stride, panel, inputs, ahead, sums.at[0]);
  } else {
    const int64_t half = ahead.lines / 2;
    multiply_vectors<R, 1>(x, stride, panel, inputs, {ahead.from, half}, sums.at[0]);
    multiply_vectors<R, 1>(x, stride, panel + kPanel, inputs,
                           {ahead.from + half * 64, ahead.lines - half}, sums.at[0] + kLanes);
  }
}

// Rows of x as float32, in a buffer that each thread keeps.
inline const float* widen(const uint16_t* x, int64_t numbers) {
  static thread_local std::vector<float> wide;
  wide.resize(std::max<size_t>(wide.size(), numbers));
  for (int64_t i = 0; i < numbers; i += kLanes) Vec::load_bf16(x + i).store(&wide[i]);
  return wide.data();
}

template <typename In>
using MultiplyTile = void (*)(const In*, int64_t, const uint16_t*, int64_t, const Ahead&, Sums&);

template <typename In, int... R>
constexpr std::array<MultiplyTile<In>, sizeof...(R)> tiles_of(std::integer_sequence<int, R...>) {
  return {multiply_tile<R + 1>...};
}
template <typename In>
constexpr auto kMultiplyTile = tiles_of<In>(std::make_integer_sequence<int, kRegisterRows>());

// Panel p times `rows` rows of x, which is [rows, inputs]; finish(row, sums of that row) for each.
// `next` is the panel that this thread needs after this one. It is prefetched if the rows are more than
// one tile of pairs.
template <typename In, typename Finish>
void multiply_panel(const In* x, const Panels& weights, int64_t p, int64_t rows,
                    const uint16_t* next, Finish finish) {
  // Few rows are multiplied with a whole panel, in two tiles if need be: its halves, one after the other,
  // come more slowly from memory (decision 8).
  const bool whole = std::is_same_v<In, float> && rows <= 2 * kWholeRows;
  const int64_t most = whole ? kWholeRows : kRegisterRows, tiles = (rows + most - 1) / most;
  const int64_t lines = next ? weights.inputs : 0;  // a panel has as many as it has inputs
  const auto ahead_of = [&](int64_t t) -> Ahead {
    if (std::is_same_v<In, uint16_t> && tiles == 1) {
      const auto* own = reinterpret_cast<const char*>(weights.panel(p));
      const bool near = rows <= kNearRows;
      return {own + (near ? kNearBytes : kFarBytes), weights.inputs, near};
    }
    const int64_t line = lines * t / tiles;
    return {reinterpret_cast<const char*>(next) + line * 64, lines * (t + 1) / tiles - line};
  };
  Sums sums;
  for (int64_t t = 0; t < tiles; ++t) {
    const int64_t row = rows * t / tiles, count = rows * (t + 1) / tiles - row;
    kMultiplyTile<In>[count - 1](x + row * weights.inputs, weights.inputs, weights.panel(p),
                                 weights.inputs, ahead_of(t), sums);
    for (int64_t r = 0; r < count; ++r) finish(row + r, sums.at[r]);
  }
}

#ifdef TANDEM_AMX
// The product in AMX's tiles. Rows are finished while the next rows are multiplied, because that uses
// other units of a core.
template <typename Finish>
void multiply_panel(Tiles& tiles, const uint16_t* x, const Panels& weights, int64_t p, int64_t rows,
                    const uint16_t* next, Finish finish) {
  const int64_t inputs = weights.inputs, steps = inputs / kTileInputs;
  const int64_t all_steps = (rows + kTwoTiles - 1) / kTwoTiles * steps;
  const int64_t lines = next ? inputs : 0;
  alignas(64) float sums[2][kTwoTiles][kPanel];
  int64_t step = 0, asked = 0, done = 0;
  const auto finish_to = [&](int64_t row) {
    for (; done < row; ++done) finish(done, sums[done / kTwoTiles % 2][done % kTwoTiles]);
  };
  for (int64_t row = 0; row < rows; row += kTwoTiles) {
    const int64_t count = std::min<int64_t>(rows - row, kTwoTiles);
    const bool lower = count > kTileSide;
    const uint16_t* panel = weights.panel(p);
    tiles.shape(static_cast<int>(count));
    clear_sums();
    for (int64_t d = 0; d < inputs; d += kTileInputs, panel += kTileInputs * kPanel, ++step) {
      for (; asked * all_steps < lines * step; ++asked)
        __builtin_prefetch(reinterpret_cast<const char*>(next) + asked * 64, 0, 2);
      add_to_sums(x + row * inputs + d, inputs, lower, panel, panel + kPanel, 2 * kPanel);
      if (row) finish_to(row - kTwoTiles + kTwoTiles * (d + kTileInputs) / inputs);
    }
    store_sums(sums[row / kTwoTiles % 2][0], kPanel, lower);
  }
  finish_to(rows);
}
#endif

// x [rows, inputs] times all panels, shared out in blocks of rows: finish(row, first column, 32 sums).
// `following` is multiplied next; its first panels are prefetched at the end, as `next` is.
template <typename Finish>
void multiply(Team& team, int phase, int me, const uint16_t* x, int64_t rows, const Panels& weights,
              const Panels* following, Finish finish) {
  const bool tiled = kProducts == Products::kTiles && weights.inputs % kTileInputs == 0;
  const int64_t block_rows = tiled ? kTiledBlockRows : kBlockRows;
  const int64_t panels = weights.count(), blocks = (rows + block_rows - 1) / block_rows;
  const int64_t last = team.first(me + 1, panels * blocks) - 1;
  const float* wide = nullptr;
  int64_t widened = -1;
#ifdef TANDEM_AMX
  Tiles tiles;
#endif
  team.share(phase, me, panels * blocks, [&](int64_t i) {
    const int64_t block = i / panels, p = i % panels;
    const uint16_t* next = nullptr;
    if (i == last)
      next = following ? following->panel(team.first(me, following->count())) : nullptr;
    else if (p + 1 < panels)
      next = weights.panel(p + 1);
    const int64_t begin = block * block_rows, count = std::min(rows - begin, block_rows);
    const uint16_t* from = x + begin * weights.inputs;
    const auto put = [&](int64_t row, const float* sums) { finish(begin + row, p * kPanel, sums); };
#ifdef TANDEM_AMX
    if (tiled) return multiply_panel(tiles, from, weights, p, count, next, put);
#endif
#ifdef TANDEM_AVX512_BF16
    if (kProducts == Products::kPairs)
      return multiply_panel(from, weights, p, count, next, put);
#endif
    if (std::exchange(widened, block) != block) wide = widen(from, count * weights.inputs);
    multiply_panel(wide, weights, p, count, next, put);
  });
}

// weight [outputs, inputs] -> [panels, inputs / 2, 32, 2]. With `gated` its first half is a gate: a
// panel then has 16 outputs of each half.
inline at::Tensor pack_panels(const at::Tensor& weight, bool gated) {
  const int64_t outputs = weight.size(0), pairs = weight.size(1) / 2;
  const int64_t panels = (outputs + kPanel - 1) / kPanel, half = outputs / 2;
  at::Tensor packed = at::empty({panels, pairs, kPanel, 2}, weight.options());
  const auto* in = reinterpret_cast<const uint32_t*>(bits(weight));
  auto* out = reinterpret_cast<uint32_t*>(mutable_bits(packed));
  at::parallel_for(0, panels, 1, [&](int64_t begin, int64_t end) {
    for (int64_t p = begin; p < end; ++p)
      for (int64_t c = 0; c < kPanel; ++c) {
        const int64_t row = !gated      ? p * kPanel + c
                            : c < kLanes ? p * kLanes + c
                                         : half + p * kLanes + c - kLanes;
        for (int64_t d = 0; d < pairs; ++d)
          out[(p * pairs + d) * kPanel + c] = row < outputs ? in[row * pairs + d] : 0;
      }
  });
  return packed;
}

}  // namespace
