// The bytes of an input as a file, for readers that take a path.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

namespace relpos::fuzz {

class FileOf {
 public:
  FileOf(const uint8_t* data, size_t size) : descriptor_(memfd_create("input", 0)) {
    while (size > 0) {
      const ssize_t written = write(descriptor_, data, size);
      if (written <= 0) std::abort();
      data += written;
      size -= static_cast<size_t>(written);
    }
  }
  ~FileOf() { close(descriptor_); }
  FileOf(const FileOf&) = delete;
  FileOf& operator=(const FileOf&) = delete;
  std::string path() const { return "/proc/self/fd/" + std::to_string(descriptor_); }

 private:
  int descriptor_;
};

}  // namespace relpos::fuzz
