// The outputs of one command: checked before anything is computed, there together or not at all.
#pragma once

#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "io/outputs.h"
#include "relpos/tensor.h"

namespace relpos::cli {

// Outputs that are not committed are removed, whatever ends the command: an error, or a signal.
class Outputs {
 public:
  Outputs() = default;
  ~Outputs();
  Outputs(const Outputs&) = delete;
  Outputs& operator=(const Outputs&) = delete;

  // The memory of a tensor that commit() writes to a file, or to standard output ("-", once). Throws
  // Error (kIo) where it cannot be written, or the format of the extension lacks the dtype.
  TensorView add(const std::string& path, DType dtype, const std::vector<int64_t>& shape);
  // Makes the folder, and those that it is in.
  void add_folder(const std::string& path);
  bool uses_stdout() const noexcept { return standard_.has_value(); }
  void commit();

 private:
  struct Result {
    std::string path;
    io::Sink* sink;
    Tensor tensor;
  };
  io::Sink& open(const std::string& path);

  std::deque<Result> results_;
  std::optional<io::OutputSet> files_{std::in_place};
  std::optional<io::Sink> standard_;
  bool committed_ = false;
};

}  // namespace relpos::cli
