// Non-owning views of dense or strided arrays, and one owning array for files and tables.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

#include "relpos/export.h"

RELPOS_EXPORT_BEGIN
namespace relpos {

enum class DType : uint8_t {
  kFloat32,
  kFloat64,
  kBFloat16,
  kFloat16,
  kInt64,
  kInt32,
  kBool,
  kUInt8
};

int64_t item_size(DType dtype) noexcept;
const char* dtype_name(DType dtype) noexcept;  // "float32", "bool", ...
bool is_floating(DType dtype) noexcept;

inline constexpr int kMaxRank = 6;

// A view of memory that the caller owns. Strides count elements and may be zero or negative; data may
// be unaligned. The memory of an input view is never written to. data == nullptr with a zero-sized
// shape is an empty tensor; a default-constructed view means "not given".
struct TensorView {
  void* data = nullptr;
  DType dtype = DType::kFloat32;
  int rank = -1;
  std::array<int64_t, kMaxRank> shape{};
  std::array<int64_t, kMaxRank> strides{};

  TensorView() = default;
  // Contiguous, row-major. Throws Error when the element count overflows int64.
  TensorView(void* data, DType dtype, const std::vector<int64_t>& shape);
  TensorView(void* data, DType dtype, std::vector<int64_t> shape, std::vector<int64_t> strides);

  bool given() const noexcept { return rank >= 0; }
  int64_t numel() const noexcept;
  bool contiguous() const noexcept;
  std::string shape_text() const;  // "[2, 8, 128, 64]"
  std::vector<int64_t> dims() const {
    return {shape.begin(), shape.begin() + (rank < 0 ? 0 : rank)};
  }

  // The element at an offset from data, counted in elements, as double; any dtype.
  double load(int64_t offset) const noexcept;
  // Rounds to nearest even for the 16-bit types.
  void store(int64_t offset, double value) const noexcept;
  int64_t load_int(int64_t offset) const noexcept;

  int64_t offset(std::initializer_list<int64_t> index) const noexcept {
    int64_t sum = 0;
    int axis = 0;
    for (int64_t i : index) sum += i * strides[static_cast<size_t>(axis++)];
    return sum;
  }
  double at(std::initializer_list<int64_t> index) const noexcept { return load(offset(index)); }
};

// A tensor that owns its memory, contiguous and initialised to 0.
class Tensor {
 public:
  Tensor() = default;
  Tensor(DType dtype, const std::vector<int64_t>& shape);
  Tensor(const Tensor& other);
  Tensor& operator=(const Tensor& other);
  Tensor(Tensor&&) noexcept = default;
  Tensor& operator=(Tensor&&) noexcept = default;
  const TensorView& view() const noexcept { return view_; }
  template <typename T>
  T* data() const noexcept {
    return static_cast<T*>(view_.data);
  }

 private:
  std::vector<std::byte> bytes_;
  TensorView view_;
};

// The number of elements of a shape. Throws an Error that names `what` if it overflows.
int64_t checked_numel(const std::vector<int64_t>& shape, const char* what);

}  // namespace relpos
RELPOS_EXPORT_END
