// How products of bfloat16 matrices are made on this processor.

#pragma once

#include "tiles.h"
#include "vec.h"

namespace {

// With AMX in tiles, where Linux gives them. With AVX512-BF16 as dot products of pairs, but not on
// Intel's cores, which do four plain multiplications of 16 numbers in the time of one such product of 16
// pairs, so twice as much. There, anywhere else, and for weights whose inputs are no whole number of
// tiles, one side is made float32, and the other's pairs are taken apart.
enum class Products { kPairs, kWidened, kTiles };

inline Products choose_products() {
#ifdef TANDEM_PRODUCTS
  static_assert(Products::TANDEM_PRODUCTS != Products::kTiles, "not where there may be none");
  return Products::TANDEM_PRODUCTS;
#else
#ifdef TANDEM_AMX
  if (ask_for_tiles()) return Products::kTiles;
#endif
#ifdef TANDEM_AVX512_BF16
  if (!__builtin_cpu_is("intel")) return Products::kPairs;
#endif
  return Products::kWidened;
#endif
}

const Products kProducts = choose_products();

}  // namespace
