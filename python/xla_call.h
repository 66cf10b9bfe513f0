// A call by XLA's FFI as calls of the C++ API. Operands and results are contiguous buffers, behind the
// leading axes that jax.vmap adds by vmap_method="expand_dims": of an operand each is of size 1 where
// it is not mapped. Attributes:
//   operands  the name of each, joined by commas: query, ..., parameters, or a field of Call
//   ranks     of each, its own rank where it has a batch axis; 0: it can have none
//   results   the name of each; or `gradients`: of each, the operand that it is a gradient of
//   position  the text; besides, options of the call under the names of their fields
#pragma once

#include <xla/ffi/api/c_api.h>

#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

#include "relpos/relpos.h"

namespace relpos {

struct XlaBuffer {
  std::string_view name;
  DType dtype = DType::kFloat32;
  char* data = nullptr;
  std::vector<int64_t> mapped;  // the sizes of the leading axes
  std::vector<int64_t> dims;    // its own
  int64_t batched_rank = 0;
};

// What one call of the C++ API takes. Views that are not given stay so.
struct XlaTensors {
  TensorView query, key, value, out, lse, softmax, dout, dlse, weights;
  Position position;
  Options options;
  Gradients gradients;
};

class XlaCall {
 public:
  // Throws Error where the frame is not as above. It must outlive the call.
  explicit XlaCall(const XLA_FFI_CallFrame& frame);

  // Calls once where the mapped axes can be a part of the batch axis, which computes the same as one
  // call for each index of them, else so.
  void run(void (*compute)(const XlaTensors&));

 private:
  void read_attributes(const XLA_FFI_Attrs& attributes);
  XlaBuffer read_buffer(const XLA_FFI_Buffer& from, std::string_view name, size_t leading);
  void set(XlaTensors& to, std::string_view name, const TensorView& view, size_t& parameter) const;
  void set_gradient(XlaTensors& to, size_t operand, const TensorView& view) const;
  TensorView slice(const XlaBuffer& buffer, int64_t index) const;
  bool fold(const XlaBuffer& buffer, int64_t batch, TensorView& view) const;
  bool folds() const;
  bool folded(XlaTensors& to) const;

  std::vector<std::string_view> operand_names_, result_names_;
  std::vector<int64_t> ranks_, gradients_;
  std::vector<XlaBuffer> operands_, results_;
  std::vector<int64_t> mapped_;  // the sizes of the mapped axes
  int64_t slices_ = 1;
  Position position_;
  Options options_;
  std::deque<std::vector<int64_t>> widened_;  // integers of 32 bits
};

}  // namespace relpos
