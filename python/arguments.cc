#include "arguments.h"

#include <array>
#include <unordered_map>
#include <utility>

namespace relpos {
namespace {

constexpr Py_ssize_t kUsualRank = 4;

// Reads a tuple of `rank` ints; false where it is none, or holds what TensorView's constructor has to
// judge: a negative or large one. Offsets of kUsualRank small sizes and strides stay below 2^61 bytes.
bool read_small(nb::handle from, Py_ssize_t rank, std::array<int64_t, kMaxRank>& to) {
  constexpr int64_t kLarge = int64_t{1} << 28;
  if (!PyTuple_Check(from.ptr()) || PyTuple_GET_SIZE(from.ptr()) != rank) return false;
  for (Py_ssize_t n = 0; n < rank; ++n) {
    const int64_t value = PyLong_AsLongLong(PyTuple_GET_ITEM(from.ptr(), n));
    if (value < 0 || value >= kLarge) {
      PyErr_Clear();
      return false;
    }
    to[static_cast<size_t>(n)] = value;
  }
  return true;
}

}  // namespace

TensorView to_view(nb::handle tensor) {
  if (tensor.is_none()) return {};
  const auto fields = nb::cast<nb::tuple>(tensor);
  const auto code = nb::cast<int>(fields[1]);
  check_value(code >= 0 && code <= static_cast<int>(DType::kBool), "dtype code: got ", code);
  TensorView view;
  const Py_ssize_t rank = PyTuple_Check(fields[2].ptr()) ? PyTuple_GET_SIZE(fields[2].ptr()) : -1;
  if (rank >= 0 && rank <= kUsualRank && read_small(fields[2], rank, view.shape) &&
      read_small(fields[3], rank, view.strides)) {
    view.data = reinterpret_cast<void*>(nb::cast<uintptr_t>(fields[0]));
    view.dtype = static_cast<DType>(code);
    view.rank = static_cast<int>(rank);
    int64_t numel = 1;
    bool fits = true;
    for (Py_ssize_t n = 0; n < rank; ++n) {
      fits = fits && !__builtin_mul_overflow(numel, view.shape[static_cast<size_t>(n)], &numel);
    }
    if (fits) return view;
  }
  return TensorView(reinterpret_cast<void*>(nb::cast<uintptr_t>(fields[0])),
                    static_cast<DType>(code), nb::cast<std::vector<int64_t>>(fields[2]),
                    nb::cast<std::vector<int64_t>>(fields[3]));
}

std::vector<TensorView> to_views(nb::handle tensors) {
  std::vector<TensorView> views;
  for (nb::handle tensor : tensors) views.push_back(to_view(tensor));
  return views;
}

Position to_position(const std::string& text, const std::vector<TensorView>& parameters) {
  static std::unordered_map<std::string, Position> cache;
  if (text.empty()) return {};
  auto found = cache.find(text);
  if (found == cache.end()) {
    Position parsed = parse_position(text);
    for (Part& part : parsed.parts) part.parameters.resize(part.specs().size());
    if (cache.size() >= 1024) cache.clear();
    found = cache.emplace(text, std::move(parsed)).first;
  }
  Position position = found->second;
  size_t next = 0;
  for (Part& part : position.parts) {
    for (TensorView& parameter : part.parameters) {
      check_value(next < parameters.size(), "parameters: expected more than ", parameters.size(),
                  " for ", text);
      parameter = parameters[next++];
    }
  }
  check_value(next == parameters.size(), "parameters: expected ", next, " for ", text, ", got ",
              parameters.size());
  return position;
}

Part to_part(const std::string& text, const std::vector<TensorView>& parameters) {
  Position position = to_position(text, parameters);
  check_value(position.parts.size() == 1, "position: expected one scheme, got ", text);
  return std::move(position.parts[0]);
}

}  // namespace relpos
