// io/safetensors.h: any bytes are tensors or an Error of kind kIo.
#include "io/safetensors.h"

#include <cstdlib>

#include "fuzz/file_of.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const relpos::fuzz::FileOf bytes(data, size);
  try {
    const relpos::io::SafetensorsFile file(bytes.path());
    for (const auto& entry : file.entries()) {
      if (file.find(entry.name) == nullptr) std::abort();
      try {
        const relpos::Tensor read = file.read(entry);
        if (read.view().dims() != entry.shape) std::abort();
      } catch (const relpos::Error& error) {
        if (error.kind() != relpos::ErrorKind::kIo) std::abort();
      }
    }
  } catch (const relpos::Error& error) {
    if (error.kind() != relpos::ErrorKind::kIo) std::abort();
  }
  return 0;
}
