// RMS norm with the addition before it, and gated activations.

#pragma once

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

#include <optional>

#include "rotary.h"

namespace {

// residual += x (where x is given); gives residual / rms(residual) * (weight + offset).
inline at::Tensor add_rms_norm(const std::optional<at::Tensor>& x, at::Tensor residual,
                               const at::Tensor& weight, double eps, double offset) {
  at::Tensor out = at::empty(residual.sizes(), residual.options());
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
  return out;
}

// gate_up [rows, 2 * size] -> [rows, size]: act(gate) * up; act is SiLU, or tanh GELU.
inline at::Tensor gate(const at::Tensor& gate_up, bool gelu) {
  const int64_t rows = gate_up.size(0), size = gate_up.size(1) / 2;
  at::Tensor out = at::empty({rows, size}, gate_up.options());
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
  return out;
}

}  // namespace
