#include "relpos/tensor.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <new>
#include <sstream>

#include "base/half.h"
#include "relpos/error.h"

namespace relpos {
namespace {

template <typename T>
T read(const void* data, int64_t offset) noexcept {
  T value;
  std::memcpy(&value, static_cast<const char*>(data) + offset * static_cast<int64_t>(sizeof(T)),
              sizeof(T));
  return value;
}

template <typename T>
void write(void* data, int64_t offset, T value) noexcept {
  std::memcpy(static_cast<char*>(data) + offset * static_cast<int64_t>(sizeof(T)), &value,
              sizeof(T));
}

// Truncates; NaN becomes 0 and what does not fit the nearest end.
template <typename T>
T to_integer(double value) noexcept {
  using Limits = std::numeric_limits<T>;
  if (std::isnan(value)) return 0;
  if (value <= static_cast<double>(Limits::min())) return Limits::min();
  if (value >= static_cast<double>(Limits::max())) return Limits::max();
  return static_cast<T>(value);
}

std::string list_text(const int64_t* sizes, int64_t count) {
  std::ostringstream text;
  text << '[';
  for (int64_t n = 0; n < count; ++n) text << (n == 0 ? "" : ", ") << sizes[n];
  text << ']';
  return text.str();
}

std::string list_text(const std::vector<int64_t>& sizes) {
  return list_text(sizes.data(), static_cast<int64_t>(sizes.size()));
}

// Row-major; where a stride would not fit, the tensor is empty and any stride will do.
std::vector<int64_t> row_major(const std::vector<int64_t>& shape) {
  std::vector<int64_t> strides(shape.size());
  int64_t step = 1;
  for (size_t n = shape.size(); n-- > 0;) {
    strides[n] = step;
    if (__builtin_mul_overflow(step, shape[n] > 1 ? shape[n] : 1, &step)) step = 0;
  }
  return strides;
}

// Offsets, in bytes too, must fit int64.
void check_reach(const TensorView& view) {
  if (view.numel() == 0) return;
  int64_t reach = item_size(view.dtype);
  for (size_t n = 0; n < static_cast<size_t>(view.rank); ++n) {
    int64_t span = 0;
    bool too_far = view.strides[n] == std::numeric_limits<int64_t>::min() ||
                   __builtin_mul_overflow(std::abs(view.strides[n]), view.shape[n] - 1, &span);
    too_far = too_far || __builtin_mul_overflow(span, item_size(view.dtype), &span);
    too_far = too_far || __builtin_add_overflow(reach, span, &reach);
    if (too_far) {
      throw_error(ErrorKind::kValue, "tensor: shape ", view.shape_text(), " with strides ",
                  list_text(view.strides.data(), view.rank), " reaches beyond 2^63 bytes");
    }
  }
}

}  // namespace

int64_t item_size(DType dtype) noexcept {
  switch (dtype) {
    case DType::kFloat64:
    case DType::kInt64:
      return 8;
    case DType::kFloat32:
    case DType::kInt32:
      return 4;
    case DType::kBFloat16:
    case DType::kFloat16:
      return 2;
    case DType::kBool:
    case DType::kUInt8:
      return 1;
  }
  return 0;
}

const char* dtype_name(DType dtype) noexcept {
  switch (dtype) {
    case DType::kFloat32:
      return "float32";
    case DType::kFloat64:
      return "float64";
    case DType::kBFloat16:
      return "bfloat16";
    case DType::kFloat16:
      return "float16";
    case DType::kInt64:
      return "int64";
    case DType::kInt32:
      return "int32";
    case DType::kBool:
      return "bool";
    case DType::kUInt8:
      return "uint8";
  }
  return "an unknown dtype";
}

bool is_floating(DType dtype) noexcept {
  return dtype == DType::kFloat32 || dtype == DType::kFloat64 || dtype == DType::kBFloat16 ||
         dtype == DType::kFloat16;
}

int64_t checked_numel(const std::vector<int64_t>& shape, const char* what) {
  bool empty = false;
  for (int64_t size : shape) {
    if (size < 0) {
      throw_error(ErrorKind::kValue, what, ": expected sizes of 0 or more, got ", list_text(shape));
    }
    empty = empty || size == 0;
  }
  if (empty) return 0;
  int64_t product = 1;
  for (int64_t size : shape) {
    if (__builtin_mul_overflow(product, size, &product)) {
      throw_error(ErrorKind::kValue, what, ": shape ", list_text(shape),
                  " has more than 2^63 - 1 elements");
    }
  }
  return product;
}

TensorView::TensorView(void* memory, DType type, const std::vector<int64_t>& sizes)
    : TensorView(memory, type, sizes, row_major(sizes)) {}

TensorView::TensorView(void* memory, DType type, std::vector<int64_t> sizes,
                       std::vector<int64_t> steps)
    : data(memory), dtype(type) {
  // Not check_value(): its arguments would be written out on every view.
  if (sizes.size() > static_cast<size_t>(kMaxRank)) {
    throw_error(ErrorKind::kValue, "tensor: expected at most ", kMaxRank, " axes, got ",
                sizes.size(), " in ", list_text(sizes));
  }
  if (sizes.size() != steps.size()) {
    throw_error(ErrorKind::kValue, "tensor: expected one stride for each axis of ",
                list_text(sizes), ", got ", list_text(steps));
  }
  checked_numel(sizes, "tensor");
  rank = static_cast<int>(sizes.size());
  std::copy(sizes.begin(), sizes.end(), shape.begin());
  std::copy(steps.begin(), steps.end(), strides.begin());
  check_reach(*this);
}

int64_t TensorView::numel() const noexcept {
  if (rank < 0) return 0;
  int64_t product = 1;
  for (size_t n = 0; n < static_cast<size_t>(rank); ++n) {
    if (shape[n] == 0) return 0;
  }
  for (size_t n = 0; n < static_cast<size_t>(rank); ++n) product *= shape[n];
  return product;
}

bool TensorView::contiguous() const noexcept {
  if (numel() == 0) return true;
  int64_t step = 1;
  for (size_t n = static_cast<size_t>(rank); n-- > 0;) {
    if (shape[n] != 1 && strides[n] != step) return false;
    step *= shape[n];
  }
  return true;
}

std::string TensorView::shape_text() const { return list_text(shape.data(), rank < 0 ? 0 : rank); }

double TensorView::load(int64_t at) const noexcept {
  switch (dtype) {
    case DType::kFloat32:
      return read<float>(data, at);
    case DType::kFloat64:
      return read<double>(data, at);
    case DType::kBFloat16:
      return widen_bfloat16(read<uint16_t>(data, at));
    case DType::kFloat16:
      return widen_float16(read<uint16_t>(data, at));
    case DType::kInt64:
      return static_cast<double>(read<int64_t>(data, at));
    case DType::kInt32:
      return read<int32_t>(data, at);
    case DType::kBool:
      return read<uint8_t>(data, at) != 0 ? 1.0 : 0.0;
    case DType::kUInt8:
      return read<uint8_t>(data, at);
  }
  return 0.0;
}

void TensorView::store(int64_t at, double value) const noexcept {
  switch (dtype) {
    case DType::kFloat32:
      return write(data, at, static_cast<float>(value));
    case DType::kFloat64:
      return write(data, at, value);
    case DType::kBFloat16:
      return write(data, at, round_bfloat16(value));
    case DType::kFloat16:
      return write(data, at, round_float16(value));
    case DType::kInt64:
      return write(data, at, to_integer<int64_t>(value));
    case DType::kInt32:
      return write(data, at, to_integer<int32_t>(value));
    case DType::kBool:
      return write(data, at, static_cast<uint8_t>(value != 0.0 ? 1 : 0));
    case DType::kUInt8:
      return write(data, at, to_integer<uint8_t>(value));
  }
}

int64_t TensorView::load_int(int64_t at) const noexcept {
  switch (dtype) {
    case DType::kInt64:
      return read<int64_t>(data, at);
    case DType::kInt32:
      return read<int32_t>(data, at);
    case DType::kBool:
      return read<uint8_t>(data, at) != 0 ? 1 : 0;
    case DType::kUInt8:
      return read<uint8_t>(data, at);
    default:
      return to_integer<int64_t>(load(at));
  }
}

Tensor::Tensor(DType dtype, const std::vector<int64_t>& shape) {
  TensorView view(nullptr, dtype, shape);
  try {
    bytes_.resize(static_cast<size_t>(view.numel() * item_size(dtype)));
  } catch (const std::bad_alloc&) {
    throw_error(ErrorKind::kMemory, "tensor: no memory for ", view.shape_text(), " ",
                dtype_name(dtype));
  }
  view.data = bytes_.data();
  view_ = view;
}

Tensor::Tensor(const Tensor& other) : bytes_(other.bytes_), view_(other.view_) {
  view_.data = bytes_.data();
}

Tensor& Tensor::operator=(const Tensor& other) {
  if (this != &other) *this = Tensor(other);
  return *this;
}

}  // namespace relpos
