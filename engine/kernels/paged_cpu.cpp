// CPU kernels over paged KV in bfloat16: attention, rotary embedding with KV store, norms, gates.
//
// A block keeps its keys and values in pairs, so that one 512-bit load feeds a bfloat16 dot product:
//   keys    [kv_heads][block_size / 16][head_size / 2][16 tokens][2 dims]
//   values  [kv_heads][block_size / 2][head_size][2 tokens]
// Attention is the online softmax of FlashAttention (Dao et al., 2022) over tiles of query rows that
// share a KV head. With AVX512-BF16 a lane operation is one instruction; elsewhere the same code
// runs on arrays of 16 floats, which the compiler vectorises.

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/library.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#if defined(__AVX512BF16__) && defined(__AVX512BW__)
#include <immintrin.h>
#define TANDEM_AVX512_BF16 1
#endif

namespace {

using bf16 = at::BFloat16;
constexpr int kLanes = 16;

inline float to_float(uint16_t bits) {
  uint32_t wide = static_cast<uint32_t>(bits) << 16;
  float value;
  std::memcpy(&value, &wide, 4);
  return value;
}

inline uint16_t to_bits(float value) {
  uint32_t wide;
  std::memcpy(&wide, &value, 4);
  return static_cast<uint16_t>((wide + 0x7fff + ((wide >> 16) & 1)) >> 16);
}

#ifdef TANDEM_AVX512_BF16
struct Vec {
  __m512 v;
  static Vec zero() { return {_mm512_setzero_ps()}; }
  static Vec all(float x) { return {_mm512_set1_ps(x)}; }
  static Vec load(const float* p) { return {_mm512_loadu_ps(p)}; }
  static Vec load_bf16(const uint16_t* p) {
    auto half = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16))};
  }
  void store(float* p) const { _mm512_storeu_ps(p, v); }
  void store_bf16(uint16_t* p) const {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), (__m256i)_mm512_cvtneps_pbh(v));
  }
  float sum() const { return _mm512_reduce_add_ps(v); }
  float max() const { return _mm512_reduce_max_ps(v); }
};
inline Vec operator+(Vec a, Vec b) { return {_mm512_add_ps(a.v, b.v)}; }
inline Vec operator-(Vec a, Vec b) { return {_mm512_sub_ps(a.v, b.v)}; }
inline Vec operator*(Vec a, Vec b) { return {_mm512_mul_ps(a.v, b.v)}; }
inline Vec operator/(Vec a, Vec b) { return {_mm512_div_ps(a.v, b.v)}; }
inline Vec fma(Vec a, Vec b, Vec c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
inline Vec larger(Vec a, Vec b) { return {_mm512_max_ps(a.v, b.v)}; }

// acc += the dot products of one pair of queries with 16 pairs.
inline Vec dot_pairs(Vec acc, uint32_t query, const uint16_t* pairs) {
  auto q = (__m512bh)_mm512_set1_epi32(static_cast<int>(query));
  auto k = (__m512bh)_mm512_loadu_si512(pairs);
  return {_mm512_dpbf16_ps(acc.v, q, k)};
}

// e^x by 2^n times a polynomial of degree 5 on [-ln2/2, ln2/2]; relative error below 2e-7.
inline Vec exp(Vec x) {
  auto clamped = _mm512_max_ps(x.v, _mm512_set1_ps(-87.0f));
  auto n = _mm512_roundscale_ps(_mm512_mul_ps(clamped, _mm512_set1_ps(1.44269504f)), 0);
  auto r = _mm512_fnmadd_ps(n, _mm512_set1_ps(0.693359375f), clamped);
  r = _mm512_fnmadd_ps(n, _mm512_set1_ps(-2.12194440e-4f), r);
  auto p = _mm512_set1_ps(1.9875691500e-4f);
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.3981999507e-3f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(8.3334519073e-3f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(4.1665795894e-2f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.6666665459e-1f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(5.0000001201e-1f));
  p = _mm512_fmadd_ps(p, _mm512_mul_ps(r, r), _mm512_add_ps(r, _mm512_set1_ps(1.0f)));
  return {_mm512_scalef_ps(p, n)};
}
#else
struct Vec {
  float v[kLanes];
  static Vec all(float x) {
    Vec r;
    for (int i = 0; i < kLanes; ++i) r.v[i] = x;
    return r;
  }
  static Vec zero() { return all(0.0f); }
  static Vec load(const float* p) {
    Vec r;
    for (int i = 0; i < kLanes; ++i) r.v[i] = p[i];
    return r;
  }
  static Vec load_bf16(const uint16_t* p) {
    Vec r;
    for (int i = 0; i < kLanes; ++i) r.v[i] = to_float(p[i]);
    return r;
  }
  void store(float* p) const {
    for (int i = 0; i < kLanes; ++i) p[i] = v[i];
  }
  void store_bf16(uint16_t* p) const {
    for (int i = 0; i < kLanes; ++i) p[i] = to_bits(v[i]);
  }
  float sum() const {
    float r = 0;
    for (int i = 0; i < kLanes; ++i) r += v[i];
    return r;
  }
  float max() const { return *std::max_element(v, v + kLanes); }
};
#define TANDEM_LANES(name, expression)         \
  inline Vec name(Vec a, Vec b) {              \
    Vec r;                                     \
    for (int i = 0; i < kLanes; ++i)           \
      r.v[i] = expression;                     \
    return r;                                  \
  }
TANDEM_LANES(operator+, a.v[i] + b.v[i])
TANDEM_LANES(operator-, a.v[i] - b.v[i])
TANDEM_LANES(operator*, a.v[i] * b.v[i])
TANDEM_LANES(operator/, a.v[i] / b.v[i])
TANDEM_LANES(larger, std::max(a.v[i], b.v[i]))
#undef TANDEM_LANES
inline Vec fma(Vec a, Vec b, Vec c) { return a * b + c; }
inline Vec dot_pairs(Vec acc, uint32_t query, const uint16_t* pairs) {
  const float low = to_float(static_cast<uint16_t>(query));
  const float high = to_float(static_cast<uint16_t>(query >> 16));
  for (int i = 0; i < kLanes; ++i)
    acc.v[i] += low * to_float(pairs[2 * i]) + high * to_float(pairs[2 * i + 1]);
  return acc;
}
inline Vec exp(Vec x) {
  for (int i = 0; i < kLanes; ++i) x.v[i] = std::exp(x.v[i]);
  return x;
}
#endif

const uint16_t* bits(const at::Tensor& t) { return reinterpret_cast<const uint16_t*>(t.const_data_ptr<bf16>()); }
uint16_t* mutable_bits(at::Tensor& t) { return reinterpret_cast<uint16_t*>(t.mutable_data_ptr<bf16>()); }

// ---------------------------------------------------------------- attention

constexpr int kChunk = 128;     // keys per round of the online softmax
constexpr int kMaxRows = 12;    // query rows per tile: 12 accumulators and room for operands
constexpr int kMaxHead = 256;

struct Span {
  const int32_t* table;
  int64_t first_row;   // of its queries among the packed tokens
  int64_t queries;
  int64_t position;    // of its first query
};

struct Shape {
  int64_t heads, kv_heads, head_size, block_size, block_elements;
  float scale;
  int64_t window;  // 0: none
};

struct Scratch {
  alignas(64) float scores[kMaxRows][kChunk];
  alignas(64) uint16_t weights[kMaxRows][kChunk];
  alignas(64) float out[kMaxRows][kMaxHead];
  alignas(64) uint16_t query[kMaxRows][kMaxHead];
  float top[kMaxRows], total[kMaxRows];
  int64_t position[kMaxRows];
};

template <int R>
void score_group(Scratch& s, const Shape& shape, const uint16_t* keys, int column) {
  Vec acc[R];
  for (int r = 0; r < R; ++r) acc[r] = Vec::zero();
  const int64_t pairs = shape.head_size / 2;
  for (int64_t d = 0; d < pairs; ++d)
    for (int r = 0; r < R; ++r)
      acc[r] = dot_pairs(acc[r], reinterpret_cast<const uint32_t*>(s.query[r])[d], keys + d * 32);
  const Vec scale = Vec::all(shape.scale);
  for (int r = 0; r < R; ++r) (acc[r] * scale).store(&s.scores[r][column]);
}

template <int R>
void mask_group(Scratch& s, const Shape& shape, int64_t first_key, int column) {
  for (int r = 0; r < R; ++r)
    for (int i = 0; i < kLanes; ++i) {
      const int64_t key = first_key + i;
      const bool seen = key <= s.position[r] && (!shape.window || key > s.position[r] - shape.window);
      if (!seen) s.scores[r][column + i] = -INFINITY;
    }
}

// Turns the chunk's scores into weights, and scales what was summed before to the new maximum.
template <int R>
void soften(Scratch& s, const Shape& shape, int columns) {
  for (int r = 0; r < R; ++r) {
    Vec top = Vec::load(s.scores[r]);
    for (int c = kLanes; c < columns; c += kLanes) top = larger(top, Vec::load(&s.scores[r][c]));
    const float highest = std::max(s.top[r], top.max());
    if (highest == -INFINITY) {  // nothing seen so far
      std::memset(s.weights[r], 0, columns * sizeof(uint16_t));
      continue;
    }
    const float shrink = std::exp(s.top[r] - highest);
    Vec sum = Vec::zero();
    for (int c = 0; c < columns; c += kLanes) {
      const Vec scores = Vec::load(&s.scores[r][c]);
      Vec weight = exp(scores - Vec::all(highest));
#ifdef TANDEM_AVX512_BF16
      weight.v = _mm512_maskz_mov_ps(
          _mm512_cmp_ps_mask(scores.v, _mm512_set1_ps(-INFINITY), _CMP_NEQ_OQ), weight.v);
#endif
      sum = sum + weight;
      weight.store_bf16(&s.weights[r][c]);
    }
    s.total[r] = s.total[r] * shrink + sum.sum();
    s.top[r] = highest;
    if (shrink != 1.0f)
      for (int64_t d = 0; d < shape.head_size; d += kLanes)
        (Vec::load(&s.out[r][d]) * Vec::all(shrink)).store(&s.out[r][d]);
  }
}

// out += weights x values for the 16 keys of a group.
template <int R>
void weigh_group(Scratch& s, const Shape& shape, const uint16_t* const* groups, int count) {
  for (int64_t d = 0; d < shape.head_size; d += 2 * kLanes) {
    Vec low[R], high[R];
    for (int r = 0; r < R; ++r) {
      low[r] = Vec::load(&s.out[r][d]);
      high[r] = Vec::load(&s.out[r][d + kLanes]);
    }
    for (int g = 0; g < count; ++g)
      for (int pair = 0; pair < kLanes / 2; ++pair) {
        const uint16_t* values = groups[g] + (pair * shape.head_size + d) * 2;
        for (int r = 0; r < R; ++r) {
          const uint32_t weight =
              reinterpret_cast<const uint32_t*>(s.weights[r])[g * kLanes / 2 + pair];
          low[r] = dot_pairs(low[r], weight, values);
          high[r] = dot_pairs(high[r], weight, values + 2 * kLanes);
        }
      }
    for (int r = 0; r < R; ++r) {
      low[r].store(&s.out[r][d]);
      high[r].store(&s.out[r][d + kLanes]);
    }
  }
}

// One tile: rows are `tokens` queries times the heads that share KV head `kv`.
template <int R>
void attend_tile(Scratch& s, const Shape& shape, const Span& span, const uint16_t* keys,
                 const uint16_t* values, int64_t kv, int64_t first, const uint16_t* query,
                 uint16_t* out) {
  const int64_t group = shape.heads / shape.kv_heads;
  int64_t last_key = 0, first_key = INT64_MAX;
  for (int r = 0; r < R; ++r) {
    const int64_t token = first + r / group;
    const int64_t row = (span.first_row + token) * shape.heads + kv * group + r % group;
    std::memcpy(s.query[r], query + row * shape.head_size, shape.head_size * 2);
    s.position[r] = span.position + token;
    s.top[r] = -INFINITY;
    s.total[r] = 0;
    std::memset(s.out[r], 0, shape.head_size * sizeof(float));
    last_key = std::max(last_key, s.position[r]);
    first_key = std::min(first_key, shape.window ? s.position[r] - shape.window + 1 : 0);
  }
  const int64_t groups = last_key / kLanes + 1;
  const int64_t per_block = shape.block_size / kLanes;
  const int64_t head_offset = kv * shape.block_size * shape.head_size;
  const int64_t group_elements = kLanes * shape.head_size;
  const uint16_t* chunk_values[kChunk / kLanes];
  for (int64_t g = std::max<int64_t>(first_key, 0) / kLanes; g < groups;) {
    const int count = static_cast<int>(std::min<int64_t>(kChunk / kLanes, groups - g));
    for (int i = 0; i < count; ++i, ++g) {
      const int64_t offset = span.table[g / per_block] * shape.block_elements + head_offset +
                             (g % per_block) * group_elements;
      chunk_values[i] = values + offset;
      score_group<R>(s, shape, keys + offset, i * kLanes);
      const int64_t key = g * kLanes;
      if (key + kLanes - 1 > s.position[0] || (shape.window && key <= last_key - shape.window))
        mask_group<R>(s, shape, key, i * kLanes);
    }
    soften<R>(s, shape, count * kLanes);
    weigh_group<R>(s, shape, chunk_values, count);
  }
  for (int r = 0; r < R; ++r) {
    const int64_t row = (span.first_row + first + r / group) * shape.heads + kv * group + r % group;
    const Vec scale = Vec::all(1.0f / s.total[r]);
    for (int64_t d = 0; d < shape.head_size; d += kLanes)
      (Vec::load(&s.out[r][d]) * scale).store_bf16(out + row * shape.head_size + d);
  }
}

using Tile = void (*)(Scratch&, const Shape&, const Span&, const uint16_t*, const uint16_t*,
                      int64_t, int64_t, const uint16_t*, uint16_t*);
constexpr Tile kTiles[kMaxRows + 1] = {
    nullptr,        attend_tile<1>, attend_tile<2>, attend_tile<3>,  attend_tile<4>,
    attend_tile<5>, attend_tile<6>, attend_tile<7>, attend_tile<8>,  attend_tile<9>,
    attend_tile<10>, attend_tile<11>, attend_tile<12>};

// query [tokens, heads, head_size]; cache [2, blocks, block_size, kv_heads, head_size];
// tables [spans, blocks] int32; starts [spans + 1] int32 rows; positions [spans] int32.
void paged_attention(const at::Tensor& query, const at::Tensor& cache, const at::Tensor& tables,
                     const at::Tensor& starts, const at::Tensor& positions, double scale,
                     int64_t window, at::Tensor out) {
  Shape shape;
  shape.heads = query.size(1);
  shape.head_size = query.size(2);
  shape.kv_heads = cache.size(3);
  shape.block_size = cache.size(2);
  shape.block_elements = shape.block_size * shape.kv_heads * shape.head_size;
  shape.scale = static_cast<float>(scale);
  shape.window = window;
  const int64_t group = shape.heads / shape.kv_heads;
  const int64_t tokens_per_tile = std::max<int64_t>(1, kMaxRows / group);
  const uint16_t* keys = bits(cache);
  const uint16_t* values = keys + cache.size(1) * shape.block_elements;
  const auto* start = starts.const_data_ptr<int32_t>();
  const auto* position = positions.const_data_ptr<int32_t>();
  const auto* table = tables.const_data_ptr<int32_t>();
  const int64_t spans = positions.size(0), width = tables.size(1);

  struct Work {
    int32_t span, kv, first;
  };
  std::vector<Work> work;
  int64_t cost = 0;
  // Longest first within a span, so that the threads end together.
  for (int64_t i = 0; i < spans; ++i) {
    const int64_t queries = start[i + 1] - start[i];
    const int64_t tiles = (queries + tokens_per_tile - 1) / tokens_per_tile;
    for (int64_t t = tiles - 1; t >= 0; --t)
      for (int64_t kv = 0; kv < shape.kv_heads; ++kv)
        work.push_back({static_cast<int32_t>(i), static_cast<int32_t>(kv),
                        static_cast<int32_t>(t * tokens_per_tile)});
    cost += tiles * shape.kv_heads * (position[i] + queries);
  }
  const uint16_t* q = bits(query);
  uint16_t* o = mutable_bits(out);
  const int threads = cost < 512 ? 1 : at::get_num_threads();
  at::parallel_for(0, threads, 1, [&](int64_t begin, int64_t end) {
    static thread_local Scratch scratch;
    for (int64_t t = begin; t < end; ++t)
      for (size_t w = t; w < work.size(); w += threads) {
        const Work& item = work[w];
        const Span span{table + item.span * width, start[item.span],
                        start[item.span + 1] - start[item.span], position[item.span]};
        // Heads beyond a tile's rows are taken in rounds of their own.
        const int64_t tokens = std::min<int64_t>(tokens_per_tile, span.queries - item.first);
        kTiles[tokens * group](scratch, shape, span, keys, values, item.kv, item.first, q, o);
      }
  });
}

// ---------------------------------------------------------------- rotary embedding and KV store

float norm_scale(const uint16_t* x, int64_t size, float eps) {
  Vec sum = Vec::zero();
  for (int64_t i = 0; i < size; i += kLanes) {
    const Vec v = Vec::load_bf16(x + i);
    sum = fma(v, v, sum);
  }
  return 1.0f / std::sqrt(sum.sum() / size + eps);
}

// One head: optional norm, then the first 2 * half dims rotated by the token's angles.
void rotate(const uint16_t* x, const uint16_t* weight, float eps, float shift, const float* cosine,
            const float* sine, int64_t half, int64_t size, float* out) {
  const float scale = weight ? norm_scale(x, size, eps) : 1.0f;
  for (int64_t i = 0; i < size; i += kLanes) {
    Vec v = Vec::load_bf16(x + i);
    if (weight) v = v * Vec::all(scale) * (Vec::load_bf16(weight + i) + Vec::all(shift));
    v.store(out + i);
  }
  for (int64_t i = 0; i < half; ++i) {
    const float a = out[i], b = out[i + half];
    out[i] = a * cosine[i] - b * sine[i];
    out[i + half] = b * cosine[i] + a * sine[i];
  }
}

void store_key(const float* key, uint16_t* head, int64_t offset, int64_t size) {
  uint16_t* group = head + (offset / kLanes) * kLanes * size + (offset % kLanes) * 2;
  for (int64_t d = 0; d < size; d += 2) {
    group[d * kLanes] = to_bits(key[d]);
    group[d * kLanes + 1] = to_bits(key[d + 1]);
  }
}

void store_value(const uint16_t* value, uint16_t* head, int64_t offset, int64_t size) {
  uint16_t* pair = head + (offset / 2) * 2 * size + offset % 2;
  for (int64_t d = 0; d < size; ++d) pair[2 * d] = value[d];
}

// qkv [tokens, (heads + 2 kv_heads) * head_size]: rotated queries go to `query`, keys and values
// to their slots (block * block_size + offset). cosine, sine [positions, half] float32.
void rope_store(const at::Tensor& qkv, const at::Tensor& cosine, const at::Tensor& sine,
                const at::Tensor& positions, const at::Tensor& slots,
                const std::optional<at::Tensor>& query_norm,
                const std::optional<at::Tensor>& key_norm, double eps, double offset,
                at::Tensor cache, at::Tensor query) {
  const int64_t tokens = query.size(0), heads = query.size(1), size = query.size(2);
  const int64_t kv_heads = cache.size(3), block_size = cache.size(2), half = cosine.size(1);
  const int64_t block_elements = block_size * kv_heads * size;
  const uint16_t* in = bits(qkv);
  uint16_t* out = mutable_bits(query);
  uint16_t* keys = mutable_bits(cache);
  uint16_t* values = keys + cache.size(1) * block_elements;
  const auto* position = positions.const_data_ptr<int64_t>();
  const auto* slot = slots.const_data_ptr<int64_t>();
  const float* c = cosine.const_data_ptr<float>();
  const float* s = sine.const_data_ptr<float>();
  const uint16_t* qn = query_norm ? bits(*query_norm) : nullptr;
  const uint16_t* kn = key_norm ? bits(*key_norm) : nullptr;
  const float e = static_cast<float>(eps), shift = static_cast<float>(offset);
  const int64_t width = (heads + 2 * kv_heads) * size;
  at::parallel_for(0, tokens, 16, [&](int64_t begin, int64_t end) {
    alignas(64) float head[kMaxHead];
    for (int64_t t = begin; t < end; ++t) {
      const uint16_t* row = in + t * width;
      const float* cos_t = c + position[t] * half;
      const float* sin_t = s + position[t] * half;
      for (int64_t h = 0; h < heads; ++h) {
        rotate(row + h * size, qn, e, shift, cos_t, sin_t, half, size, head);
        uint16_t* to = out + (t * heads + h) * size;
        for (int64_t d = 0; d < size; d += kLanes) Vec::load(head + d).store_bf16(to + d);
      }
      const int64_t block = slot[t] / block_size, offset = slot[t] % block_size;
      for (int64_t h = 0; h < kv_heads; ++h) {
        const int64_t at_head = block * block_elements + h * block_size * size;
        rotate(row + (heads + h) * size, kn, e, shift, cos_t, sin_t, half, size, head);
        store_key(head, keys + at_head, offset, size);
        store_value(row + (heads + kv_heads + h) * size, values + at_head, offset, size);
      }
    }
  });
}

// ---------------------------------------------------------------- norms and gates

// residual += x (where x is given); out = residual / rms(residual) * (weight + offset).
void add_rms_norm(const std::optional<at::Tensor>& x, at::Tensor residual, const at::Tensor& weight,
                  double eps, double offset, at::Tensor out) {
  const int64_t rows = residual.size(0), size = residual.size(1);
  const uint16_t* in = x ? bits(*x) : nullptr;
  uint16_t* kept = mutable_bits(residual);
  uint16_t* to = mutable_bits(out);
  const uint16_t* w = bits(weight);
  const Vec shift = Vec::all(static_cast<float>(offset));
  at::parallel_for(0, rows, 32, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      uint16_t* row = kept + r * size;
      if (in)
        for (int64_t i = 0; i < size; i += kLanes)
          (Vec::load_bf16(row + i) + Vec::load_bf16(in + r * size + i)).store_bf16(row + i);
      const Vec scale = Vec::all(norm_scale(row, size, static_cast<float>(eps)));
      for (int64_t i = 0; i < size; i += kLanes)
        (Vec::load_bf16(row + i) * scale * (Vec::load_bf16(w + i) + shift))
            .store_bf16(to + r * size + i);
    }
  });
}

// gate_up [rows, 2 * size] -> out [rows, size]: act(gate) * up; act is SiLU, or tanh GELU.
void gate(const at::Tensor& gate_up, bool gelu, at::Tensor out) {
  const int64_t rows = out.size(0), size = out.size(1);
  const uint16_t* in = bits(gate_up);
  uint16_t* to = mutable_bits(out);
  const Vec one = Vec::all(1.0f);
  at::parallel_for(0, rows, 8, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r)
      for (int64_t i = 0; i < size; i += kLanes) {
        const Vec g = Vec::load_bf16(in + r * 2 * size + i);
        const Vec up = Vec::load_bf16(in + r * 2 * size + size + i);
        // GELU's tanh form is x * sigmoid(2 * sqrt(2 / pi) * (x + 0.044715 x^3)).
        const Vec inner = gelu ? g * (Vec::all(1.5957691216f) +
                                      Vec::all(0.0713548163f) * g * g)
                               : g;
        (g / (one + exp(Vec::zero() - inner)) * up).store_bf16(to + r * size + i);
      }
  });
}

}  // namespace

TORCH_LIBRARY(tandem_cpu, m) {
  m.def("paged_attention(Tensor query, Tensor cache, Tensor tables, Tensor starts, "
        "Tensor positions, float scale, int window, Tensor(a!) out) -> ()");
  m.def("rope_store(Tensor qkv, Tensor cosine, Tensor sine, Tensor positions, Tensor slots, "
        "Tensor? query_norm, Tensor? key_norm, float eps, float offset, Tensor(a!) cache, Tensor(b!) query) -> ()");
  m.def("add_rms_norm(Tensor? x, Tensor(a!) residual, Tensor weight, float eps, float offset, "
        "Tensor(b!) out) -> ()");
  m.def("gate(Tensor gate_up, bool gelu, Tensor(a!) out) -> ()");
}

TORCH_LIBRARY_IMPL(tandem_cpu, CPU, m) {
  m.impl("paged_attention", paged_attention);
  m.impl("rope_store", rope_store);
  m.impl("add_rms_norm", add_rms_norm);
  m.impl("gate", gate);
}
