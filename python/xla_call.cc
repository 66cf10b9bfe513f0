#include "xla_call.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <numeric>
#include <span>
#include <tuple>
#include <utility>

#include "arguments.h"

namespace relpos {
namespace {

constexpr std::pair<std::string_view, TensorView XlaTensors::*> kTensors[] = {
    {"query", &XlaTensors::query}, {"key", &XlaTensors::key},   {"value", &XlaTensors::value},
    {"out", &XlaTensors::out},     {"lse", &XlaTensors::lse},   {"softmax", &XlaTensors::softmax},
    {"dout", &XlaTensors::dout},   {"dlse", &XlaTensors::dlse}, {"weights", &XlaTensors::weights},
};

constexpr std::tuple<XLA_FFI_DataType, DType> kTypes[] = {
    {XLA_FFI_DataType_F32, DType::kFloat32},   {XLA_FFI_DataType_F64, DType::kFloat64},
    {XLA_FFI_DataType_BF16, DType::kBFloat16}, {XLA_FFI_DataType_F16, DType::kFloat16},
    {XLA_FFI_DataType_S64, DType::kInt64},     {XLA_FFI_DataType_S32, DType::kInt32},
    {XLA_FFI_DataType_U32, DType::kInt32},     {XLA_FFI_DataType_PRED, DType::kBool},
    {XLA_FFI_DataType_U8, DType::kUInt8},
};

int64_t product(std::span<const int64_t> sizes) {
  return std::accumulate(sizes.begin(), sizes.end(), int64_t{1}, std::multiplies<>());
}

std::string_view text_of(const XLA_FFI_ByteSpan& span) { return {span.ptr, span.len}; }

std::vector<std::string_view> names_in(std::string_view text) {
  std::vector<std::string_view> names;
  while (!text.empty()) {
    const size_t comma = std::min(text.find(','), text.size());
    names.push_back(text.substr(0, comma));
    text.remove_prefix(std::min(comma + 1, text.size()));
  }
  return names;
}

std::vector<int64_t> integers_in(const XLA_FFI_Array& array) {
  check_value(array.dtype == XLA_FFI_DataType_S64, "attributes: expected integers of 64 bits");
  std::vector<int64_t> values(array.size);
  std::memcpy(values.data(), array.data, array.size * sizeof(int64_t));
  return values;
}

template <typename T>
T scalar(const XLA_FFI_Scalar& from, XLA_FFI_DataType dtype) {
  check_value(from.dtype == dtype, "attributes: expected scalars of bool, int64 or float64");
  T value;
  std::memcpy(&value, from.value, sizeof value);
  return value;
}

CallArgument to_argument(CallOption::Kind kind, XLA_FFI_AttrType type, const void* value) {
  if (kind == CallOption::Kind::kPair && type == XLA_FFI_AttrType_ARRAY) {
    const auto pair = integers_in(*static_cast<const XLA_FFI_Array*>(value));
    return std::pair(pair.at(0), pair.at(1));
  }
  check_value(type == XLA_FFI_AttrType_SCALAR, "attributes: expected a scalar");
  const auto& from = *static_cast<const XLA_FFI_Scalar*>(value);
  if (kind == CallOption::Kind::kBool) return scalar<bool>(from, XLA_FFI_DataType_PRED);
  if (kind == CallOption::Kind::kInt) return scalar<int64_t>(from, XLA_FFI_DataType_S64);
  check_value(kind == CallOption::Kind::kReal, "attributes: expected no tensor");
  return scalar<double>(from, XLA_FFI_DataType_F64);
}

}  // namespace

XlaCall::XlaCall(const XLA_FFI_CallFrame& frame) {
  read_attributes(frame.attrs);
  const auto operand_count = static_cast<size_t>(frame.args.size);
  const auto result_count = static_cast<size_t>(frame.rets.size);
  check_value(operand_names_.size() == operand_count && ranks_.size() == operand_count,
              "operands: expected ", operand_names_.size(), ", got ", operand_count);
  check_value(std::max(result_names_.size(), gradients_.size()) == result_count,
              "results: expected ", std::max(result_names_.size(), gradients_.size()), ", got ",
              result_count);
  constexpr int64_t kQueryRank = 4;
  size_t leading = 0;
  for (size_t n = 0; n < operand_count; ++n) {
    const auto& buffer = *static_cast<const XLA_FFI_Buffer*>(frame.args.args[n]);
    if (n == 0) leading = static_cast<size_t>(std::max<int64_t>(buffer.rank - kQueryRank, 0));
    operands_.push_back(read_buffer(buffer, operand_names_[n], leading));
    operands_.back().batched_rank = ranks_[n];
  }
  for (size_t n = 0; n < result_count; ++n) {
    const auto& buffer = *static_cast<const XLA_FFI_Buffer*>(frame.rets.rets[n]);
    const std::string_view name = result_names_.empty() ? std::string_view() : result_names_[n];
    results_.push_back(read_buffer(buffer, name, leading));
  }
  if (!results_.empty()) mapped_ = results_[0].mapped;
  slices_ = product(mapped_);
}

void XlaCall::read_attributes(const XLA_FFI_Attrs& attributes) {
  for (int64_t n = 0; n < attributes.size; ++n) {
    const std::string_view name = text_of(*attributes.names[n]);
    const XLA_FFI_AttrType type = attributes.types[n];
    const void* value = attributes.attrs[n];
    if (type == XLA_FFI_AttrType_STRING) {
      const std::string_view text = text_of(*static_cast<const XLA_FFI_ByteSpan*>(value));
      if (name == "operands") operand_names_ = names_in(text);
      if (name == "results") result_names_ = names_in(text);
      if (name == "position" && !text.empty()) position_ = parsed(std::string(text));
    } else if (name == "ranks" || name == "gradients") {
      auto& to = name == "ranks" ? ranks_ : gradients_;
      to = integers_in(*static_cast<const XLA_FFI_Array*>(value));
    } else {
      const CallOption* option = find_call_option(name);
      check_value(option != nullptr, "attributes: nothing here reads ", name);
      option->set(options_, to_argument(option->kind, type, value));
    }
  }
  options_.path = forced_path();
}

XlaBuffer XlaCall::read_buffer(const XLA_FFI_Buffer& from, std::string_view name, size_t leading) {
  XlaBuffer buffer;
  buffer.name = name;
  buffer.data = static_cast<char*>(from.data);
  const std::span<const int64_t> dims(from.dims, static_cast<size_t>(from.rank));
  check_value(dims.size() >= leading, name, ": expected ", leading, " mapped axes");
  buffer.mapped.assign(dims.begin(), dims.begin() + static_cast<ptrdiff_t>(leading));
  buffer.dims.assign(dims.begin() + static_cast<ptrdiff_t>(leading), dims.end());
  const auto* found =
      std::ranges::find(kTypes, from.dtype, [](const auto& t) { return get<0>(t); });
  check_value(found != std::end(kTypes), name, ": expected a floating, integer or bool array");
  buffer.dtype = get<1>(*found);
  if (buffer.dtype != DType::kInt32) return buffer;
  buffer.dtype = DType::kInt64;
  // Without jax_enable_x64 integers of 64 bits come as pairs of 32.
  const bool words = name == "tile_words" && buffer.dims.size() == 3;
  if (words || (name == "seed" && product(buffer.dims) == 2)) {
    buffer.dims.pop_back();
    return buffer;
  }
  const bool is_signed = from.dtype == XLA_FFI_DataType_S32;
  std::vector<int64_t>& wide = widened_.emplace_back(static_cast<size_t>(product(dims)));
  for (size_t n = 0; n < wide.size(); ++n) {
    int32_t narrow = 0;
    std::memcpy(&narrow, buffer.data + n * sizeof narrow, sizeof narrow);
    wide[n] = is_signed ? narrow : static_cast<int64_t>(static_cast<uint32_t>(narrow));
  }
  buffer.data = reinterpret_cast<char*>(wide.data());
  return buffer;
}

void XlaCall::set(XlaTensors& to, std::string_view name, const TensorView& view,
                  size_t& parameter) const {
  const auto* tensor = std::ranges::find(kTensors, name, [](const auto& t) { return t.first; });
  if (tensor != std::end(kTensors)) {
    to.*(tensor->second) = view;
  } else if (name == "parameters") {
    size_t n = parameter++;
    for (Part& part : to.position.parts) {
      if (n < part.parameters.size()) {
        part.parameters[n] = view;
        return;
      }
      n -= part.parameters.size();
    }
    check_value(false, "parameters: expected no more than ", parameter - 1);
  } else {
    const CallOption* option = find_call_option(name);
    check_value(option != nullptr && option->kind == CallOption::Kind::kTensor,
                "operands: nothing here reads ", name);
    option->set(to.options, view);
  }
}

void XlaCall::set_gradient(XlaTensors& to, size_t operand, const TensorView& view) const {
  check_value(operand < operands_.size(), "gradients: expected operands");
  const std::string_view name = operand_names_[operand];
  if (name == "query") to.gradients.query = view;
  if (name == "key") to.gradients.key = view;
  if (name == "value") to.gradients.value = view;
  if (name == "attn_mask") to.gradients.attn_mask = view;
  if (name != "parameters") return;
  auto n = static_cast<size_t>(std::count(operand_names_.begin(),
                                          operand_names_.begin() + static_cast<ptrdiff_t>(operand),
                                          "parameters"));
  for (std::vector<TensorView>& part : to.gradients.parameters) {
    if (n < part.size()) {
      part[n] = view;
      return;
    }
    n -= part.size();
  }
}

// The numbers of one index of the mapped axes, in row-major order.
TensorView XlaCall::slice(const XlaBuffer& buffer, int64_t index) const {
  int64_t offset = 0, size = product(buffer.dims);
  for (size_t n = mapped_.size(); n-- > 0;) {
    const int64_t at = index % mapped_[n];
    index /= mapped_[n];
    if (buffer.mapped[n] > 1) offset += at * size;
    size *= buffer.mapped[n];
  }
  return TensorView(buffer.data + offset * item_size(buffer.dtype), buffer.dtype, buffer.dims);
}

// With the mapped axes as a part of the batch axis. False where that has no strides.
bool XlaCall::fold(const XlaBuffer& buffer, int64_t batch, TensorView& view) const {
  std::vector<int64_t> dims = buffer.dims;
  const auto batched_rank = static_cast<size_t>(buffer.batched_rank);
  const int64_t slices = product(buffer.mapped);
  if (slices == 1) {
    view = TensorView(buffer.data, buffer.dtype, dims);
    const bool in_batch = batched_rank > 0 && dims.size() == batched_rank && dims[0] == batch;
    if (!in_batch) return true;
    view.shape[0] = slices_;
    view.strides[0] = 0;
    return batch == 1;
  }
  if (slices != slices_ || batched_rank == 0) return false;
  while (dims.size() < batched_rank) dims.insert(dims.begin(), 1);
  if (dims[0] != batch) return false;
  dims[0] *= slices_;
  view = TensorView(buffer.data, buffer.dtype, dims);
  return true;
}

// Whether one call for all slices means the same: dropout counts by batch row, what is not query, key or
// value has one gradient for each slice, and tokens of each slice may reach elsewhere.
bool XlaCall::folds() const {
  const bool own_gradients = std::ranges::all_of(gradients_, [&](int64_t operand) {
    const std::string_view name = operand_names_.at(static_cast<size_t>(operand));
    return name == "query" || name == "key" || name == "value";
  });
  const bool placed = std::ranges::any_of(operands_, [](const XlaBuffer& buffer) {
    const bool places = buffer.name == "q_offsets" || buffer.name == "k_offsets" ||
                        buffer.name == "q_positions" || buffer.name == "k_positions";
    return places && product(buffer.mapped) > 1;
  });
  return own_gradients && options_.dropout_p == 0.0 && !stays_apart(position_, placed);
}

bool XlaCall::folded(XlaTensors& to) const {
  if (!folds()) return false;
  const int64_t batch = operands_.at(0).dims.at(0);
  size_t parameter = 0;
  TensorView view;
  for (const XlaBuffer& buffer : operands_) {
    if (!fold(buffer, batch, view)) return false;
    set(to, buffer.name, view, parameter);
  }
  for (size_t n = 0; n < results_.size(); ++n) {
    std::vector<int64_t> dims = results_[n].dims;
    dims.at(0) *= slices_;
    view = TensorView(results_[n].data, results_[n].dtype, dims);
    if (gradients_.empty()) {
      set(to, results_[n].name, view, parameter);
    } else {
      set_gradient(to, static_cast<size_t>(gradients_[n]), view);
    }
  }
  return true;
}

void XlaCall::run(void (*compute)(const XlaTensors&)) {
  if (slices_ == 0) return;
  XlaTensors tensors;
  tensors.position = position_;
  tensors.options = options_;
  for (const Part& part : position_.parts) {
    tensors.gradients.parameters.emplace_back(part.parameters.size());
  }
  if (slices_ > 1) {
    XlaTensors whole = tensors;
    if (folded(whole)) {
      compute(whole);
      return;
    }
  }
  for (int64_t index = 0; index < slices_; ++index) {
    size_t parameter = 0;
    for (const XlaBuffer& buffer : operands_) {
      set(tensors, buffer.name, slice(buffer, index), parameter);
    }
    for (size_t n = 0; n < results_.size(); ++n) {
      const TensorView view = slice(results_[n], index);
      if (gradients_.empty()) {
        set(tensors, results_[n].name, view, parameter);
      } else {
        set_gradient(tensors, static_cast<size_t>(gradients_[n]), view);
      }
    }
    compute(tensors);
  }
}

}  // namespace relpos
