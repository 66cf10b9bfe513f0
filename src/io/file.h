// What the readers and writers of this folder share: files whose size is known before the first
// byte is trusted, and outputs that appear whole or not at all.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "relpos/error.h"
#include "relpos/tensor.h"

namespace relpos::io {

// Quoted, everything but plain ASCII escaped, about 80 characters: fit for one line of an error.
std::string printable(std::string_view text);

// A regular file, open for reading. Every failure is an Error of kind kIo that starts with the path.
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
  std::string path_;
  int descriptor_ = -1;
  int64_t size_ = 0;
};

// Writes beside `path` and renames in commit(); without commit() nothing is left behind.
class OutputFile {
 public:
  explicit OutputFile(const std::string& path);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  void write(const void* data, size_t bytes);
  // The elements of a view of any strides, in row-major order.
  void write(const TensorView& view);
  void commit();

 private:
  [[noreturn]] void fail(const char* action) const;
  std::string path_, target_, temporary_;
  int descriptor_ = -1;
};

// Copies the elements of `view`, in row-major order, to contiguous bytes.
void gather(const TensorView& view, int64_t first, int64_t count, std::byte* out);

// Throws kIo when a bool tensor holds a byte that is neither 0 nor 1.
void check_bools(const InputFile& file, const TensorView& view);

}  // namespace relpos::io
