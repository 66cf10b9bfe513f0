// Tensors of a call in memory of their own, for tests that look at all of it afterwards.
#pragma once

#include <algorithm>
#include <bit>
#include <cstring>
#include <list>
#include <utility>
#include <vector>

#include "testing/entries.h"

namespace relpos::entries {

// Plain memory, which remembers what inputs held.
class Held final : public Maker {
 public:
  TensorView input(Tensor numbers, bool) override {
    before_.push_back(numbers);
    return inputs_.emplace_back(std::move(numbers)).view();
  }
  TensorView gapless(Tensor numbers) override { return input(std::move(numbers), false); }
  TensorView output(DType dtype, const std::vector<int64_t>& shape) override {
    return outputs_.emplace_back(dtype, shape).view();
  }

  bool kept_inputs() const {
    auto before = before_.begin();
    return std::all_of(inputs_.begin(), inputs_.end(), [&](const Tensor& now) {
      const Tensor& then = *before++;
      const auto bytes = static_cast<size_t>(now.view().numel() * item_size(now.view().dtype));
      return bytes == 0 || std::memcmp(now.view().data, then.view().data, bytes) == 0;
    });
  }
  std::vector<uint64_t> bits() const {
    std::vector<uint64_t> all;
    for (const Tensor& tensor : outputs_) {
      for (int64_t n = 0; n < tensor.view().numel(); ++n) {
        all.push_back(std::bit_cast<uint64_t>(tensor.view().load(n)));
      }
    }
    return all;
  }

 private:
  std::list<Tensor> inputs_, before_, outputs_;
};

}  // namespace relpos::entries
