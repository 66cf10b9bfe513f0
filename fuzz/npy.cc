// io/npy.h: any bytes are a tensor or an Error of kind kIo; what was read can be written and read again.
#include "io/npy.h"

#include <cstdlib>
#include <cstring>

#include "fuzz/file_of.h"

namespace {

using relpos::Error;
using relpos::Tensor;
using relpos::fuzz::FileOf;

void again(const Tensor& read) {
  const int descriptor = memfd_create("again", 0);
  const std::string path = "/proc/self/fd/" + std::to_string(descriptor);
  relpos::io::Sink sink(path, descriptor);
  relpos::io::write_npy(sink, read.view());
  const Tensor same = relpos::io::read_npy(path);
  close(descriptor);
  const auto bytes =
      static_cast<size_t>(read.view().numel() * relpos::item_size(read.view().dtype));
  if (same.view().dims() != read.view().dims()) std::abort();
  if (bytes > 0 && std::memcmp(same.view().data, read.view().data, bytes) != 0) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const FileOf file(data, size);
  Tensor read;
  try {
    read = relpos::io::read_npy(file.path());
  } catch (const Error& error) {
    if (error.kind() != relpos::ErrorKind::kIo) std::abort();
    return 0;
  }
  again(read);
  return 0;
}
