// CPU operations over paged KV in bfloat16, as torch.ops of the library TANDEM_LIBRARY.
//
// A block keeps its keys and values in pairs (pairs.h), and weights are in panels of pairs (panels.h),
// so that one 512-bit load feeds a bfloat16 dot product. With AVX512-BF16 a lane operation is one
// instruction, with AVX2 two; elsewhere the same code runs on arrays of 16 floats, which the compiler
// vectorises.

#include <torch/library.h>

#include <memory>
#include <optional>

#include "layers.h"
#include "pairs.h"

namespace {

// The tensors of a layer, in this order; missing tensors are empty.
namespace part {
enum {
  input_norm, mlp_norm, post_attention, post_mlp, query_norm, key_norm, cosine, sine,
  qkv_panels, out_panels, gate_up_panels, down_panels,
  qkv_bias, out_bias, gate_up_bias, down_bias, count
};
}

const uint16_t* bits_or_null(const at::Tensor& t) { return t.numel() ? bits(t) : nullptr; }

Panels panels_of(const at::Tensor& t, int64_t outputs) { return {bits(t), outputs, t.size(1) * 2}; }

// x [tokens, hidden] -> the residual stream behind the layers, of all tokens or of the rows `wanted`,
// each the last of its span; the KV of all goes into `caches`, each [2, blocks, block_size, kv_heads,
// head_size]. `parts` has part::count tensors for each layer. See PackedBatch for the spans:
// positions, slots [tokens], tables [spans, blocks], starts, firsts; and for `halted`, after which
// `caches` and the result may have any content. With `others`, [2] each, see Beside in
// engine/cpu/core_sharing.py: a prompt's pass, of more than a few tokens, gives way to their steps, and takes
// `cores` where there are none.
at::Tensor layers(const at::Tensor& x, at::TensorList parts, at::IntArrayRef windows,
                  at::TensorList caches, const at::Tensor& positions, const at::Tensor& slots,
                  const at::Tensor& tables, const at::Tensor& starts, const at::Tensor& firsts,
                  const at::Tensor& halted, const std::optional<at::Tensor>& wanted,
                  at::TensorList others, double since, int64_t cores, int64_t heads, double scale,
                  double softcap, double eps, double offset, bool gelu) {
  TORCH_CHECK(parts.size() == caches.size() * part::count, "a layer has ", int{part::count}, " tensors");
  const at::Tensor& cache = caches[0];
  Shape shape;
  shape.heads = heads;
  shape.head_size = cache.size(4);
  shape.kv_heads = cache.size(3);
  shape.block_size = cache.size(2);
  shape.block_elements = shape.block_size * shape.kv_heads * shape.head_size;
  shape.scale = static_cast<float>(scale);
  shape.softcap = static_cast<float>(softcap);
  const int64_t hidden = x.size(1), width = (heads + 2 * shape.kv_heads) * shape.head_size;
  const float e = static_cast<float>(eps), shift = static_cast<float>(offset);
  std::vector<LayerWeights> weights;
  for (size_t i = 0; i < caches.size(); ++i) {
    const at::Tensor* of = &parts[i * part::count];
    uint16_t* keys = reinterpret_cast<uint16_t*>(caches[i].data_ptr<bf16>());
    const int64_t middle = of[part::down_panels].size(1) * 2;
    weights.push_back({bits(of[part::input_norm]), bits(of[part::mlp_norm]),
                       bits_or_null(of[part::post_attention]), bits_or_null(of[part::post_mlp]),
                       panels_of(of[part::qkv_panels], width), panels_of(of[part::out_panels], hidden),
                       panels_of(of[part::gate_up_panels], 2 * middle),
                       panels_of(of[part::down_panels], hidden), bits_or_null(of[part::qkv_bias]),
                       bits_or_null(of[part::out_bias]), bits_or_null(of[part::gate_up_bias]),
                       bits_or_null(of[part::down_bias]),
                       {of[part::cosine].const_data_ptr<float>(), of[part::sine].const_data_ptr<float>(),
                        of[part::cosine].size(1), shape.head_size, bits_or_null(of[part::query_norm]),
                        bits_or_null(of[part::key_norm]), e, shift},
                       {keys, keys + caches[i].stride(0)}, windows[i]});
  }
  const Spans spans{positions.const_data_ptr<int64_t>(), slots.const_data_ptr<int64_t>(),
                    tables.const_data_ptr<int32_t>(), starts.const_data_ptr<int32_t>(),
                    firsts.const_data_ptr<int32_t>(), x.size(0), firsts.size(0), tables.size(1)};
  std::optional<std::vector<int64_t>> rows;
  if (wanted) {
    const auto* first = wanted->const_data_ptr<int64_t>();
    rows.emplace(first, first + wanted->numel());
  }
  at::Tensor out = at::empty({wanted ? wanted->numel() : x.size(0), hidden}, x.options());
  // Helpers may read these also after this has returned.
  const auto owner = std::make_shared<const std::vector<at::Tensor>>(others.begin(), others.end());
  Others beside{{}, owner, since};
  for (const at::Tensor& step : *owner) beside.steps.push_back(step.const_data_ptr<double>());
  const bool shared = !beside.steps.empty() && x.size(0) > std::max(kAlone, firsts.size(0));
  const Crew crew{shared ? static_cast<int>(cores) : at::get_num_threads(),
                  halted.const_data_ptr<int32_t>(),
                  shared ? std::optional(std::move(beside)) : std::nullopt};
  Step::run(std::make_shared<Step>(std::move(weights), shape, spans,
                                   Norm{e, Vec::all(shift), hidden}, gelu, crew, std::move(rows)),
            bits(x), mutable_bits(out));
  return out;
}

// RMS norm of x [rows, hidden], then its product with the head's panels: [rows, outputs].
at::Tensor head(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& panels,
                const at::Tensor& bias, int64_t outputs, double eps, double offset) {
  at::Tensor normed = at::empty(x.sizes(), x.options());
  at::Tensor out = at::empty({x.size(0), outputs}, x.options());
  const Norm norm{static_cast<float>(eps), Vec::all(static_cast<float>(offset)), x.size(1)};
  for (int64_t r = 0; r < x.size(0); ++r)
    norm(bits(x) + r * norm.size, bits(weight), mutable_bits(normed) + r * norm.size);
  const Panels weights = panels_of(panels, outputs);
  const uint16_t* b = bits_or_null(bias);
  uint16_t* o = mutable_bits(out);
  Team team({at::get_num_threads()}, 1);
#pragma omp parallel num_threads(team.threads())
  multiply(team, 0, omp_get_thread_num(), bits(normed), x.size(0), weights, nullptr,
           [&](int64_t row, int64_t column, const float* sums) {
             const int64_t columns = std::min<int64_t>(kPanel, outputs - column);
             uint16_t* to = o + row * outputs + column;
             if (columns == kPanel && !b) {
               Vec::load(sums).store_bf16(to);
               Vec::load(sums + kLanes).store_bf16(to + kLanes);
               return;
             }
             for (int64_t c = 0; c < columns; ++c)
               to[c] = to_bits(sums[c] + (b ? to_float(b[column + c]) : 0.0f));
           });
  return out;
}

}  // namespace

TORCH_LIBRARY(TANDEM_LIBRARY, m) {
  m.def("layers(Tensor x, Tensor[] parts, int[] windows, Tensor[] caches, Tensor positions, "
        "Tensor slots, Tensor tables, Tensor starts, Tensor firsts, Tensor halted, Tensor? wanted, "
        "Tensor[] others, float since, int cores, int heads, float scale, float softcap, float eps, "
        "float offset, bool gelu) -> Tensor");
  m.def("head(Tensor x, Tensor weight, Tensor panels, Tensor bias, int outputs, float eps, "
        "float offset) -> Tensor");
  m.def("pack_panels(Tensor weight, bool gated) -> Tensor");
  m.def("scatter_pairs(Tensor plain, Tensor index, Tensor(a!) cache) -> ()");
  m.def("gather_pairs(Tensor cache, Tensor index, Tensor(a!) plain) -> ()");
  m.def("copy_blocks(Tensor from, Tensor sources, Tensor(a!) to, Tensor targets) -> ()");
  m.def("wake(Tensor step) -> ()");
}

TORCH_LIBRARY_IMPL(TANDEM_LIBRARY, CPU, m) {
  m.impl("layers", layers);
  m.impl("head", head);
  m.impl("pack_panels", pack_panels);
  m.impl("scatter_pairs", scatter_pairs);
  m.impl("gather_pairs", gather_pairs);
  m.impl("copy_blocks", copy_blocks);
  m.impl("wake", [](const at::Tensor& step) { wake(step.const_data_ptr<double>()); });
}
