// Address space of any size for tests.
#pragma once

#include <sys/mman.h>

#include <cstdint>
#include <stdexcept>
#include <vector>

#include "relpos/tensor.h"

namespace relpos {

// Zeros that take memory only where they are written.
class Region {
 public:
  explicit Region(int64_t bytes) : bytes_(static_cast<size_t>(bytes)) {
    data_ = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (data_ == MAP_FAILED) throw std::runtime_error("no address space for the test");
  }
  ~Region() { munmap(data_, bytes_); }
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;
  TensorView view(std::vector<int64_t> shape, DType dtype = DType::kFloat32) const {
    return TensorView(data_, dtype, shape);
  }

 private:
  size_t bytes_;
  void* data_;
};

}  // namespace relpos
