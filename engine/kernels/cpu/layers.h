// Decoder layers as one operation: the threads go through the phases together, and meet five times
// in a layer. With few rows every thread norms all of them for itself, which is cheaper than a barrier.

#pragma once

#include <omp.h>

#include "helpers.h"
#include "norms.h"
#include "paged.h"
#include "panels.h"
#include "team.h"

namespace {

constexpr int64_t kAlone = 16;  // rows that each thread norms for itself

struct LayerWeights {
  const uint16_t *input_norm, *mlp_norm, *post_attention, *post_mlp;
  Panels qkv, out, gate_up, down;
  const uint16_t *qkv_bias, *out_bias, *gate_up_bias, *down_bias;
  Rotary rotary;
  Blocks blocks;
  int64_t window;
};

// The rows that the threads share.
struct Rows {
  uint16_t *qkv, *query, *attended, *branch, *gated, *residual, *hidden;
};

// A buffer for that many numbers, kept from step to step, because new memory causes page faults.
inline uint16_t* workspace(int64_t numbers) {
  static thread_local std::unique_ptr<uint16_t[]> buffer;
  static thread_local int64_t size = 0;
  if (numbers > size) {
    buffer.reset();  // before the larger buffer is allocated
    buffer.reset(new uint16_t[numbers]);
    size = numbers;
  }
  return buffer.get();
}

enum Phase { kNorm, kQkv, kRotate, kAttend, kWanted, kOut, kMlpNorm, kGateUp, kDown, kPhases };

class Step {
 public:
  // `wanted`: the rows, in order, for which the stream behind the layers is needed.
  // The crew has `others` only for more than `kAlone` tokens.
  Step(std::vector<LayerWeights> layers, const Shape& shape, const Spans& spans, const Norm& norm,
       bool gelu, const Crew& crew, std::optional<std::vector<int64_t>> wanted)
      : layers_(std::move(layers)),
        shape_(shape),
        spans_(spans),
        norm_(norm),
        gelu_(gelu),
        wanted_(std::move(wanted)),
        shared_(crew.others),
        alone_(spans.tokens <= kAlone),
        team_(crew, static_cast<int>(layers_.size() * kPhases + 1)) {
    const LayerWeights& any = layers_.front();
    const int64_t hidden = norm.size, copies = alone_ ? crew.threads : 1;
    const int64_t attended = any.out.inputs, gated = any.down.inputs;
    uint16_t* free = workspace(spans.tokens * (any.qkv.outputs + 2 * attended + gated +
                                               hidden * (1 + 2 * copies)));
    const auto take = [&](int64_t width) { return std::exchange(free, free + spans.tokens * width); };
    rows_ = {take(any.qkv.outputs), take(attended),        take(attended),        take(hidden),
             take(gated),           take(hidden * copies), take(hidden * copies)};
    singles_ = spans.count == spans.tokens;
    if (!singles_ && (!wanted_ || layers_.size() > 1)) work_ = cut(shape, spans);
    if (!singles_ && wanted_) wanted_work_ = cut(shape, spans, *wanted_);
  }

  // x [tokens, hidden], out [tokens or wanted, hidden]: the residual stream before and after the
  // layers.
  static void run(std::shared_ptr<Step> step, const uint16_t* x, uint16_t* out) {
    Team& team = step->team_;
    if (step->shared_) {
      // Helpers may read the step and its `others` when this has returned, but no other data.
      static thread_local Helpers helpers;
      helpers.offer([step, x, out](int me) { step->take_part(me, x, out); }, team.threads() - 1);
      step->take_part(0, x, out);
      team.close();
      return;
    }
#pragma omp parallel num_threads(team.threads())
    {
      team.enter(omp_get_num_threads());
      step->take_part(omp_get_thread_num(), x, out);
    }
  }

 private:
  void take_part(int me, const uint16_t* x, uint16_t* out) {
    const int64_t mine = alone_ ? me * spans_.tokens * norm_.size : 0;
    uint16_t* residual = rows_.residual + mine;
    uint16_t* hidden = rows_.hidden + mine;
    for (size_t i = 0; i < layers_.size(); ++i) layer(i, me, i ? nullptr : x, residual, hidden);
    const uint16_t* post = layers_.back().post_mlp;
    const int64_t rows = left(layers_.size() - 1);
    team_.share(static_cast<int>(layers_.size() * kPhases), me, rows, [&](int64_t r) {
      uint16_t* row = residual + r * norm_.size;
      join(r, post, row);
      std::memcpy(out + r * norm_.size, row, norm_.size * sizeof(uint16_t));
    });
  }

  // `x` is the first layer's input. The other layers use the output of the layer before.
  void layer(size_t index, int me, const uint16_t* x, uint16_t* residual, uint16_t* hidden) {
    const LayerWeights& w = layers_[index];
    const int phase = static_cast<int>(index * kPhases);
    const Panels* following = index + 1 < layers_.size() ? &layers_[index + 1].qkv : nullptr;
    const uint16_t* post = index ? layers_[index - 1].post_mlp : nullptr;
    rows(phase + kNorm, me, spans_.tokens, [&](int64_t r) {
      uint16_t* row = residual + r * norm_.size;
      if (x)
        std::memcpy(row, x + r * norm_.size, norm_.size * sizeof(uint16_t));
      else
        join(r, post, row);
      norm_(row, w.input_norm, hidden + r * norm_.size);
    });
    product(phase + kQkv, me, hidden, spans_.tokens, w.qkv, w.qkv_bias, &w.out, rows_.qkv);
    team_.wait();
    const bool narrow = wanted_ && index + 1 == layers_.size();
    attention(phase, me, w, narrow ? wanted_work_ : work_);
    team_.wait();
    if (narrow) {
      keep_wanted(phase + kWanted, me, residual);
      team_.wait();
    }
    const int64_t count = left(index);
    product(phase + kOut, me, rows_.attended, count, w.out, w.out_bias, &w.gate_up, rows_.branch);
    team_.wait();
    rows(phase + kMlpNorm, me, count, [&](int64_t r) {
      uint16_t* row = residual + r * norm_.size;
      join(r, w.post_attention, row);
      norm_(row, w.mlp_norm, hidden + r * norm_.size);
    });
    gate_up(phase + kGateUp, me, hidden, count, w);
    team_.wait();
    product(phase + kDown, me, rows_.gated, count, w.down, w.down_bias, following, rows_.branch);
    team_.wait();
  }

  // The number of rows behind the attention of a layer.
  int64_t left(size_t layer) const {
    const bool narrow = wanted_ && layer + 1 == layers_.size();
    return narrow ? static_cast<int64_t>(wanted_->size()) : spans_.tokens;
  }

  // Moves the wanted rows to the front. A thread with its own copy of the stream moves its own rows.
  void keep_wanted(int phase, int me, uint16_t* residual) {
    const auto to_front = [&](uint16_t* numbers, int64_t width) {
      for (size_t i = 0; i < wanted_->size(); ++i)
        std::memmove(numbers + i * width, numbers + (*wanted_)[i] * width, width * sizeof(uint16_t));
    };
    if (alone_) to_front(residual, norm_.size);
    team_.share(phase, me, 1, [&](int64_t) {
      if (!alone_) to_front(residual, norm_.size);
      to_front(rows_.attended, layers_.back().out.inputs);
    });
  }

  // Every thread computes all rows in its own copies, or the threads share the rows and meet.
  template <typename Row>
  void rows(int phase, int me, int64_t count, Row row) {
    if (alone_) {
      for (int64_t r = 0; r < count; ++r) row(r);
    } else {
      team_.share(phase, me, count, row);
      team_.wait();
    }
  }

  // row += the branch's row r, normed first where there is a weight for it.
  void join(int64_t r, const uint16_t* post, uint16_t* row) const {
    const uint16_t* branch = rows_.branch + r * norm_.size;
    if (!post) return add(branch, row, norm_.size);
    static thread_local std::vector<uint16_t> normed;
    normed.resize(norm_.size);
    norm_(branch, post, normed.data());
    add(normed.data(), row, norm_.size);
  }

  void attention(int phase, int me, const LayerWeights& w, const std::vector<Work>& work) {
    const int64_t width = w.qkv.outputs;
    Shape shape = shape_;
    shape.window = w.window;
    const auto rotate = [&](int64_t token, int64_t kv) {
      turn_and_store(rows_.qkv + token * width, shape, w.rotary, kv,
                     spans_.positions[token], spans_.slots[token], w.blocks,
                     rows_.query + token * w.out.inputs);
    };
    const auto attend_to = [&](const Work& work) {
      attend(shape, spans_, work, w.blocks, rows_.query, rows_.attended);
    };
    if (singles_) {  // no row needs the keys of another
      const int64_t together = kv_heads_at_once(shape, spans_, team_.threads());
      const int64_t parts = shape.kv_heads / together;
      team_.share(phase + kAttend, me, spans_.count * parts, [&](int64_t i) {
        const auto span = static_cast<int32_t>(i / parts);
        const int64_t kv = i % parts * together;
        for (int64_t k = kv; k < kv + together; ++k) rotate(span, k);
        if (together > 1) return attend_to({span, Tile{kv, 0, 0, shape.heads}});
        each_tile(shape, kv, 0, [&](const Tile& tile) { attend_to({span, tile}); });
      });
      return;
    }
    team_.share(phase + kRotate, me, spans_.tokens, [&](int64_t token) {
      for (int64_t kv = 0; kv < shape.kv_heads; ++kv) rotate(token, kv);
    });
    team_.wait();
    team_.share(phase + kAttend, me, static_cast<int64_t>(work.size()),
                [&](int64_t i) { attend_to(work[i]); });
  }

  void product(int phase, int me, const uint16_t* x, int64_t count, const Panels& weights,
               const uint16_t* bias, const Panels* following, uint16_t* out) {
    multiply(team_, phase, me, x, count, weights, following,
             [&](int64_t row, int64_t column, const float* sums) {
               for (int64_t c = 0; c < kPanel && column + c < weights.outputs; c += kLanes) {
                 Vec sum = Vec::load(sums + c);
                 if (bias) sum = sum + Vec::load_bf16(bias + column + c);
                 sum.store_bf16(out + row * weights.outputs + column + c);
               }
             });
  }

  // A panel has 16 outputs of the gate and the same 16 of the up projection.
  void gate_up(int phase, int me, const uint16_t* x, int64_t count, const LayerWeights& w) {
    const int64_t width = w.down.inputs;
    multiply(team_, phase, me, x, count, w.gate_up, &w.down,
             [&](int64_t row, int64_t column, const float* sums) {
               const int64_t at = column / 2;
               Vec gate = Vec::load(sums), up = Vec::load(sums + kLanes);
               if (w.gate_up_bias) {
                 gate = gate + Vec::load_bf16(w.gate_up_bias + at);
                 up = up + Vec::load_bf16(w.gate_up_bias + width + at);
               }
               gated(gate, up, gelu_).store_bf16(rows_.gated + row * width + at);
             });
  }

  const std::vector<LayerWeights> layers_;
  const Shape shape_;
  const Spans spans_;
  const Norm norm_;
  const bool gelu_;
  const std::optional<std::vector<int64_t>> wanted_;
  const bool shared_, alone_;
  bool singles_;
  Team team_;
  Rows rows_;
  std::vector<Work> work_, wanted_work_;
};

}  // namespace
