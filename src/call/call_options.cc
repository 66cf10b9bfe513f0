#include "relpos/call_options.h"

#include <algorithm>
#include <iterator>

#include "relpos/error.h"

namespace relpos {
namespace {

using Kind = CallOption::Kind;

Offset& q_offset(Options& options) {
  return options.q_offset ? *options.q_offset : options.q_offset.emplace();
}

TensorView tensor(const CallArgument& argument) { return std::get<TensorView>(argument); }
int64_t integer(const CallArgument& argument) { return std::get<int64_t>(argument); }
double real(const CallArgument& argument) { return std::get<double>(argument); }
bool flag(const CallArgument& argument) { return std::get<bool>(argument); }
std::pair<int64_t, int64_t> pair(const CallArgument& argument) {
  return std::get<std::pair<int64_t, int64_t>>(argument);
}

constexpr CallOption kOptions[] = {
    {"attn_mask", "attn_mask", Kind::kTensor,
     [](Options& to, const CallArgument& a) { to.attn_mask = tensor(a); }},
    {"tile_ranges", "attn_mask", Kind::kTensor,
     [](Options& to, const CallArgument& a) { to.tile_mask.ranges = tensor(a); }},
    {"tile_entries", "attn_mask", Kind::kTensor,
     [](Options& to, const CallArgument& a) { to.tile_mask.entries = tensor(a); }},
    {"tile_words", "attn_mask", Kind::kTensor,
     [](Options& to, const CallArgument& a) { to.tile_mask.words = tensor(a); }},
    {"tile_lengths", "attn_mask", Kind::kPair,
     [](Options& to, const CallArgument& a) {
       to.tile_mask.queries = pair(a).first;
       to.tile_mask.keys = pair(a).second;
     }},
    {"key_padding_mask", "key_padding_mask", Kind::kTensor,
     [](Options& to, const CallArgument& a) { to.key_padding_mask = tensor(a); }},
    {"q_offset", "q_offset", Kind::kInt,
     [](Options& to, const CallArgument& a) { q_offset(to).value = integer(a); }},
    {"q_offsets", "q_offset", Kind::kTensor,
     [](Options& to, const CallArgument& a) { q_offset(to).per_row = tensor(a); }},
    {"k_offset", "k_offset", Kind::kInt,
     [](Options& to, const CallArgument& a) { to.k_offset.value = integer(a); }},
    {"k_offsets", "k_offset", Kind::kTensor,
     [](Options& to, const CallArgument& a) { to.k_offset.per_row = tensor(a); }},
    {"q_positions", "q_positions", Kind::kTensor,
     [](Options& to, const CallArgument& a) { to.q_positions = tensor(a); }},
    {"k_positions", "k_positions", Kind::kTensor,
     [](Options& to, const CallArgument& a) { to.k_positions = tensor(a); }},
    {"key_lo", "key_range", Kind::kTensor,
     [](Options& to, const CallArgument& a) { to.key_lo = tensor(a); }},
    {"key_hi", "key_range", Kind::kTensor,
     [](Options& to, const CallArgument& a) { to.key_hi = tensor(a); }},
    {"seed", "seed", Kind::kTensor,
     [](Options& to, const CallArgument& a) {
       const TensorView view = tensor(a);
       check_value(view.dtype == DType::kInt64 && view.numel() == 1,
                   "seed: expected one int64, got ", dtype_name(view.dtype), " ",
                   view.shape_text());
       to.seed = static_cast<uint64_t>(view.load_int(0));
     }},
    {"dropout_p", "dropout_p", Kind::kReal,
     [](Options& to, const CallArgument& a) { to.dropout_p = real(a); }},
    {"is_causal", "is_causal", Kind::kBool,
     [](Options& to, const CallArgument& a) { to.is_causal = flag(a); }},
    {"scale", "scale", Kind::kReal, [](Options& to, const CallArgument& a) { to.scale = real(a); }},
    {"softcap", "softcap", Kind::kReal,
     [](Options& to, const CallArgument& a) { to.softcap = real(a); }},
    {"float32_products", "float32_products", Kind::kBool,
     [](Options& to, const CallArgument& a) { to.float32_products = flag(a); }},
    {"enable_gqa", "enable_gqa", Kind::kBool,
     [](Options& to, const CallArgument& a) { to.enable_gqa = flag(a); }},
    {"window", "window", Kind::kPair,
     [](Options& to, const CallArgument& a) { to.window = pair(a); }},
    {"first_head", "first_head", Kind::kInt,
     [](Options& to, const CallArgument& a) { to.first_head = integer(a); }},
    {"all_heads", "all_heads", Kind::kInt,
     [](Options& to, const CallArgument& a) { to.all_heads = integer(a); }},
    {"length", "length", Kind::kInt,
     [](Options& to, const CallArgument& a) { to.length = integer(a); }},
    {"dropout_rows", "dropout_rows", Kind::kTensor,
     [](Options& to, const CallArgument& a) { to.dropout_rows = tensor(a); }},
    {"dropout_columns", "dropout_columns", Kind::kTensor,
     [](Options& to, const CallArgument& a) { to.dropout_columns = tensor(a); }},
    {"adds_sinks", "adds_sinks", Kind::kBool,
     [](Options& to, const CallArgument& a) { to.adds_sinks = flag(a); }},
};

}  // namespace

std::span<const CallOption> call_options() { return kOptions; }

const CallOption* find_call_option(std::string_view name) {
  const auto* found = std::ranges::find(kOptions, name, &CallOption::name);
  return found == std::end(kOptions) ? nullptr : found;
}

}  // namespace relpos
