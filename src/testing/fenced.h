// Tensors that lie between two inaccessible pages, in any layout: what reads or writes beyond one faults,
// and what writes to the bytes between its elements is found.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <vector>

#include "base/strided.h"
#include "relpos/tensor.h"

namespace relpos::fenced {

// Strides of a layout, counted in elements.
enum class Layout { kPlain, kSwapped, kBackward, kRowsBackward, kSpaced, kShared };
inline constexpr int kLayouts = 6;

// The axis of which all entries are one in kShared: the first that has several.
inline size_t shared_axis(const std::vector<int64_t>& shape) {
  const auto several = std::ranges::find_if(shape, [](int64_t size) { return size > 1; });
  return several == shape.end() ? 0 : static_cast<size_t>(several - shape.begin());
}

inline std::vector<int64_t> strides_of(Layout layout, const std::vector<int64_t>& shape) {
  const size_t rank = shape.size();
  std::vector<size_t> order;  // of the axes in memory, the innermost last
  for (size_t axis = 0; axis < rank; ++axis) order.push_back(axis);
  if (layout == Layout::kSwapped && rank >= 3) std::swap(order[rank - 3], order[rank - 2]);
  if (layout == Layout::kSwapped && rank == 2) std::swap(order[0], order[1]);
  std::vector<int64_t> strides(rank);
  int64_t step = layout == Layout::kSpaced ? 2 : 1;
  for (size_t n = rank; n-- > 0;) {
    strides[order[n]] = step;
    step *= shape[order[n]];
    if (layout == Layout::kSpaced && n + 1 == rank) step += 3;
  }
  for (size_t axis = 0; axis < rank; ++axis) {
    const bool row = axis + 2 == rank;
    if (layout == Layout::kBackward || (layout == Layout::kRowsBackward && row)) {
      strides[axis] = -strides[axis];
    }
  }
  if (layout == Layout::kShared && rank > 0) strides[shared_axis(shape)] = 0;
  return strides;
}

// The page that a tensor touches.
enum class Edge { kBefore, kBehind };

// The memory of one tensor. Bytes of no element are 0xFF: NaN in every floating dtype, -1 in integers.
class Fenced {
 public:
  // `shift`: bytes between the tensor and the page at its edge.
  Fenced(DType dtype, const std::vector<int64_t>& shape, Layout layout, Edge edge, int64_t shift) {
    const std::vector<int64_t> strides = strides_of(layout, shape);
    const int64_t item = item_size(dtype);
    int64_t lowest = 0, highest = 0;  // elements, seen from the first
    bool empty = false;
    for (size_t axis = 0; axis < shape.size(); ++axis) {
      empty = empty || shape[axis] == 0;
      const int64_t far = strides[axis] * std::max<int64_t>(shape[axis] - 1, 0);
      (far < 0 ? lowest : highest) += far;
    }
    const int64_t bytes = empty ? 0 : (highest - lowest + 1) * item;
    page_ = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    inner_ = (static_cast<size_t>(bytes + shift) + page_ - 1) / page_ * page_;
    void* mapped = mmap(nullptr, inner_ + 2 * page_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped == MAP_FAILED) throw std::runtime_error("no memory for a fenced tensor");
    begin_ = static_cast<unsigned char*>(mapped) + page_;
    protect(PROT_READ | PROT_WRITE);
    std::memset(begin_, kOutside, inner_);
    unsigned char* low = edge == Edge::kBefore
                             ? begin_ + shift
                             : begin_ + inner_ - static_cast<size_t>(shift + bytes);
    view_ = TensorView(low - (empty ? 0 : lowest) * item, dtype, shape, strides);
  }
  ~Fenced() { munmap(begin_ - page_, inner_ + 2 * page_); }
  Fenced(const Fenced&) = delete;
  Fenced& operator=(const Fenced&) = delete;

  const TensorView& view() const noexcept { return view_; }
  // From now on a write to the tensor faults, too.
  void seal() const { protect(PROT_READ); }
  // Whether all bytes are as they were but those of elements.
  bool kept_outside() const {
    std::vector<unsigned char> outside(begin_, begin_ + inner_);
    const int64_t item = item_size(view_.dtype);
    for_each_offset(view_, [&](int64_t offset) {
      const auto at = static_cast<unsigned char*>(view_.data) + offset * item - begin_;
      std::memset(outside.data() + at, kOutside, static_cast<size_t>(item));
    });
    return std::ranges::count(outside, kOutside) == std::ssize(outside);
  }

 private:
  static constexpr unsigned char kOutside = 0xFF;
  void protect(int how) const {
    if (inner_ > 0 && mprotect(begin_, inner_, how) != 0) throw std::runtime_error("mprotect");
  }

  size_t page_ = 0, inner_ = 0;
  unsigned char* begin_ = nullptr;  // of the accessible pages
  TensorView view_;
};

}  // namespace relpos::fenced
