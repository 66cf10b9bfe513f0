// What the readers and writers of this folder share: inputs whose size is known before any of their
// content is used, and sinks for bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "relpos/error.h"
#include "relpos/tensor.h"

namespace relpos::io {

// The text in quotes, cut to about 80 characters, everything but plain ASCII escaped, for error texts.
std::string printable(std::string_view text);

// A regular file, open for reading, or standard input ("-", which is read to its end at once where
// it is no regular file). Every failure is an Error of kind kIo that starts with the path.
class InputFile {
 public:
  explicit InputFile(const std::string& path);
  ~InputFile();
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  int64_t size() const noexcept { return size_; }
  const std::string& path() const noexcept { return path_; }
  // offset + bytes <= size(), else an error that says the file is truncated.
  void read(int64_t offset, void* out, int64_t bytes) const;

  template <typename... Parts>
  [[noreturn]] void fail(const Parts&... parts) const {
    throw_error(ErrorKind::kIo, path_, ": ", parts...);
  }

 private:
  void read_to_end();
  std::string path_;
  int descriptor_ = -1;
  int64_t size_ = 0;
  bool held_ = false;  // the bytes are in held_bytes_, not behind the descriptor
  std::vector<std::byte> held_bytes_;
};

// Writes bytes, one after another, to a descriptor that stays open.
class Sink {
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
void gather(const TensorView& view, int64_t first, int64_t count, std::byte* out);

// Throws kIo when a bool tensor holds a byte that is neither 0 nor 1.
void check_bools(const InputFile& file, const TensorView& view);

}  // namespace relpos::io
