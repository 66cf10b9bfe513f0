// The outputs of one command: checked before anything is computed, and written all or none.
#pragma once

#include <optional>
#include <string>

#include "io/outputs.h"
#include "relpos/tensor.h"

namespace relpos::cli {

// Files that were added but not committed are removed when an error or a signal ends the command.
class Outputs {
 public:
  Outputs() = default;
  ~Outputs();
  Outputs(const Outputs&) = delete;
  Outputs& operator=(const Outputs&) = delete;

  // A file, or standard output ("-", once). Throws Error (kIo) where it cannot be written.
  io::Sink& add(const std::string& path);
  // The same for a tensor of `dtype`, which the format of the extension must have.
  io::Sink& add_tensor(const std::string& path, DType dtype);
  // Makes the folder, and those that it is in.
  void add_folder(const std::string& path);
  bool uses_stdout() const noexcept { return standard_.has_value(); }
  void commit();

 private:
  void forget();

  std::optional<io::OutputSet> files_{std::in_place};
  std::optional<io::Sink> standard_;
  bool committed_ = false;
};

}  // namespace relpos::cli
