// The safetensors format: 8 bytes of header length, a JSON header, one buffer that the tensors tile
// without gaps. Every claim of the header is checked against the file before anything is allocated.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "io/file.h"
#include "relpos/export.h"
#include "relpos/tensor.h"

namespace relpos::io {

class RELPOS_EXPORT SafetensorsFile {
 public:
  struct Entry {
    std::string name, dtype;  // dtype as written: "F32"
    std::vector<int64_t> shape;
    int64_t begin = 0, end = 0;  // bytes of the buffer
  };

  // Reads and checks the header. Throws Error (kIo).
  explicit SafetensorsFile(const std::string& path);

  const std::vector<Entry>& entries() const noexcept { return entries_; }  // in the header's order
  const Entry* find(const std::string& name) const noexcept;
  // F32, F64, F16, BF16, I64, I32 and BOOL; other types may stand in the file but are not read.
  Tensor read(const Entry& entry) const;

 private:
  void check();
  InputFile file_;
  int64_t buffer_ = 0;  // where the buffer starts
  std::vector<Entry> entries_;
};

// Writes tensors of any strides in the given order.
RELPOS_EXPORT void write_safetensors(
    Sink& sink, const std::vector<std::pair<std::string, TensorView>>& tensors);

}  // namespace relpos::io
