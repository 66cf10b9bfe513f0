#include "values/views.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "base/parallel.h"
#include "base/strided.h"
#include "relpos/error.h"

namespace relpos {

std::ostream& operator<<(std::ostream& out, const Dims& dims) {
  return out << TensorView(nullptr, DType::kFloat32, dims.sizes).shape_text();
}

std::ostream& operator<<(std::ostream& out, const Shape& shape) {
  return out << (shape.view.given() ? shape.view.shape_text() : "nothing");
}

void check_position(int64_t position, const char* name) {
  check_value(position > -kPositionLimit && position < kPositionLimit, name,
              ": expected positions within +-2^61, got ", position);
}

void check_input(const TensorView& view, const std::vector<int64_t>& shape, const char* name) {
  check_value(view.given() && view.dims() == shape, name, ": expected ", Dims{shape}, ", got ",
              Shape{view});
}

void check_output(const TensorView& view, const std::vector<int64_t>& shape, DType dtype,
                  const char* name) {
  check_input(view, shape, name);
  if (view.dtype != dtype) {
    throw_error(ErrorKind::kType, name, ": expected ", dtype_name(dtype), ", got ",
                dtype_name(view.dtype));
  }
  if (view.numel() == 0) return;
  for (int axis = 0; axis < view.rank; ++axis) {
    check_value(
        view.shape[static_cast<size_t>(axis)] == 1 || view.strides[static_cast<size_t>(axis)] != 0,
        name, ": an output must not overlap itself, but axis ", axis, " has stride 0");
  }
}

TensorView broadcast_view(const TensorView& view, const std::vector<int64_t>& shape,
                          const char* name) {
  TensorView wide = view;
  wide.rank = static_cast<int>(shape.size());
  bool fits = view.rank <= wide.rank;
  for (int axis = wide.rank - 1; fits && axis >= 0; --axis) {
    const int from = axis - (wide.rank - view.rank);
    const auto at = static_cast<size_t>(axis);
    const int64_t size = from < 0 ? 1 : view.shape[static_cast<size_t>(from)];
    wide.strides[at] = size == 1 && shape[at] != 1 ? 0
                       : from < 0                  ? 0
                                                   : view.strides[static_cast<size_t>(from)];
    wide.shape[at] = shape[at];
    fits = size == 1 || size == shape[at];
  }
  check_value(fits, name, ": expected a shape that broadcasts to ", Dims{shape}, ", got ",
              Shape{view});
  return wide;
}

void load_run(const TensorView& view, int64_t at, int64_t count, int64_t stride, double* to) {
  if (view.dtype != DType::kFloat32 || stride != 1) {
    for (int64_t n = 0; n < count; ++n) to[n] = view.load(at + n * stride);
    return;
  }
  const auto* from = static_cast<const std::byte*>(view.data) + at * 4;  // at any address
  for (int64_t n = 0; n < count; ++n) {
    float value;
    std::memcpy(&value, from + n * 4, sizeof value);
    to[n] = value;
  }
}

void write_values(const std::vector<double>& values, const TensorView& view) {
  CancelTicks tick;
  const double* from = values.data();
  for_each_row(view, [&](int64_t at, int64_t count, int64_t stride) {
    if (view.dtype == DType::kFloat32 && stride == 1) {
      tick(count);
      auto* to = static_cast<std::byte*>(view.data) + at * 4;  // at any address
      for (int64_t n = 0; n < count; ++n) {
        const auto value = static_cast<float>(from[n]);
        std::memcpy(to + n * 4, &value, sizeof value);
      }
    } else {
      for (int64_t n = 0; n < count; ++n) {
        tick();
        view.store(at + n * stride, from[n]);
      }
    }
    from += count;
  });
}

void write_zeros(const TensorView& view, int threads, CancelToken* cancel) {
  if (!view.contiguous()) {
    CancelTicks tick;
    for_each_offset(view, [&](int64_t at) {
      tick();
      view.store(at, 0.0);
    });
    return;
  }
  constexpr int64_t kPiece = int64_t{1} << 20;
  auto* memory = static_cast<char*>(view.data);
  const int64_t bytes = view.numel() * item_size(view.dtype);
  Stopper stopper(cancel);
  parallel_for((bytes + kPiece - 1) / kPiece, threads, stopper, [&](int64_t n, int) {
    std::memset(memory + n * kPiece, 0, static_cast<size_t>(std::min(kPiece, bytes - n * kPiece)));
  });
  stopper.check();
}

}  // namespace relpos
