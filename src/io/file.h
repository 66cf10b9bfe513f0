// The readers and writers of this folder share these: inputs whose size is known before the first
// byte is trusted, and sinks for bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "relpos/error.h"
#include "relpos/export.h"
#include "relpos/tensor.h"

namespace relpos::io {

// Quoted, everything but plain ASCII escaped, about 80 characters: fit for one line of an error.
RELPOS_EXPORT std::string printable(std::string_view text);

// A regular file, open for reading, or standard input ("-", which is read to its end at once where
// it is no regular file). Every failure is an Error of kind kIo that starts with the path.
class RELPOS_EXPORT InputFile {
 public:
  explicit InputFile(const std::string& path);
  ~InputFile();
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  int64_t size() const noexcept { return size_; }
  // offset + bytes <= size(), else an error that says the file is truncated.
  void read(int64_t offset, void* out, int64_t bytes) const;
  // The bytes of so many elements of `item` bytes; an error that starts with `who` on overflow.
  int64_t bytes_of(const std::vector<int64_t>& shape, int64_t item, const std::string& who) const;
  // Row-major elements at an offset; a bool must be 0 or 1.
  Tensor read_tensor(DType dtype, const std::vector<int64_t>& shape, int64_t offset,
                     const std::string& who) const;

  template <typename... Parts>
  [[noreturn]] void fail(const Parts&... parts) const {
    throw_error(ErrorKind::kIo, path_, ": ", parts...);
  }

 private:
  InputFile(std::string path, int descriptor);
  void read_to_end();
  std::string path_;
  int descriptor_ = -1;
  int64_t size_ = 0;
  bool held_ = false;  // the bytes are in held_bytes_, not behind the descriptor
  std::vector<std::byte> held_bytes_;
};

// Bytes go one after the other to a descriptor that stays open.
class RELPOS_EXPORT Sink {
 public:
  Sink(std::string path, int descriptor) : path_(std::move(path)), descriptor_(descriptor) {}
  Sink(const Sink&) = delete;
  Sink& operator=(const Sink&) = delete;

  const std::string& path() const noexcept { return path_; }
  void write(const void* data, size_t bytes);
  // The elements of a view of any strides, in row-major order.
  void write(const TensorView& view);

 protected:
  [[noreturn]] void fail(const std::string& action) const;
  std::string path_;  // as given, for errors
  int descriptor_;
};

// Copies the elements of `view`, in row-major order, to contiguous bytes.
RELPOS_EXPORT void gather(const TensorView& view, int64_t first, int64_t count, std::byte* out);

}  // namespace relpos::io
