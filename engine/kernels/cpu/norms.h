// The rows of the residual stream: RMS norm with the addition before it, and gated activations.

#pragma once

#include "rotary.h"

namespace {

struct Norm {
  float eps;
  Vec shift;  // added to the weights
  int64_t size;

  // x / rms(x) * (weight + shift); may be done in place.
  void operator()(const uint16_t* x, const uint16_t* weight, uint16_t* out) const {
    const Vec scale = Vec::all(norm_scale(x, size, eps));
    for (int64_t i = 0; i < size; i += kLanes)
      (Vec::load_bf16(x + i) * scale * (Vec::load_bf16(weight + i) + shift)).store_bf16(out + i);
  }
};

inline void add(const uint16_t* x, uint16_t* to, int64_t size) {
  for (int64_t i = 0; i < size; i += kLanes)
    (Vec::load_bf16(to + i) + Vec::load_bf16(x + i)).store_bf16(to + i);
}

// act(gate) * up; act is SiLU, or GELU's tanh form: x * sigmoid(2 * sqrt(2 / pi) * (x + 0.044715 x^3)).
inline Vec gated(Vec gate, Vec up, bool gelu) {
  const Vec inner =
      gelu ? gate * (Vec::all(1.5957691216f) + Vec::all(0.0713548163f) * gate * gate) : gate;
  return gate / (Vec::all(1.0f) + exp(Vec::zero() - inner)) * up;
}

}  // namespace
