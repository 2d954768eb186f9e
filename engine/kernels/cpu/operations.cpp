// CPU operations over paged KV in bfloat16, as torch.ops of the library TANDEM_LIBRARY.
//
// A block keeps its keys and values in pairs (pairs.h), so that one 512-bit load feeds a bfloat16
// dot product. With AVX512-BF16 a lane operation is one instruction; elsewhere the same code runs on
// arrays of 16 floats, which the compiler vectorises.

#include <torch/library.h>

#include "norms.h"
#include "paged.h"
#include "pairs.h"

namespace {

// Rotates and stores the step's keys and values, then attends: [tokens, heads * head_size].
// See rope_store and paged_attention for what they take.
at::Tensor attend(const at::Tensor& qkv, const at::Tensor& cosine, const at::Tensor& sine,
                  const at::Tensor& positions, const at::Tensor& slots,
                  const std::optional<at::Tensor>& query_norm,
                  const std::optional<at::Tensor>& key_norm, double eps, double offset,
                  at::Tensor cache, const at::Tensor& tables, const at::Tensor& starts,
                  const at::Tensor& firsts, int64_t heads, double scale, int64_t window,
                  double softcap) {
  const int64_t tokens = qkv.size(0), size = cache.size(4);
  at::Tensor query = at::empty({tokens, heads, size}, qkv.options());
  at::Tensor out = at::empty({tokens, heads * size}, qkv.options());
  rope_store(qkv, cosine, sine, positions, slots, query_norm, key_norm, eps, offset, cache, query);
  paged_attention(query, cache, tables, starts, firsts, scale, window, softcap, out);
  return out;
}

}  // namespace

TORCH_LIBRARY(TANDEM_LIBRARY, m) {
  m.def("attend(Tensor qkv, Tensor cosine, Tensor sine, Tensor positions, Tensor slots, "
        "Tensor? query_norm, Tensor? key_norm, float eps, float offset, Tensor(a!) cache, "
        "Tensor tables, Tensor starts, Tensor firsts, int heads, float scale, int window, "
        "float softcap) -> Tensor");
  m.def("add_rms_norm(Tensor? x, Tensor(a!) residual, Tensor weight, float eps, float offset) "
        "-> Tensor");
  m.def("gate(Tensor gate_up, bool gelu) -> Tensor");
  m.def("scatter_pairs(Tensor plain, Tensor index, Tensor(a!) cache) -> ()");
  m.def("gather_pairs(Tensor cache, Tensor index, Tensor(a!) plain) -> ()");
}

TORCH_LIBRARY_IMPL(TANDEM_LIBRARY, CPU, m) {
  m.impl("attend", attend);
  m.impl("add_rms_norm", add_rms_norm);
  m.impl("gate", gate);
  m.impl("scatter_pairs", scatter_pairs);
  m.impl("gather_pairs", gather_pairs);
}
