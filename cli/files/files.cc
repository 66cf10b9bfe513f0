#include "cli/files/files.h"

#include <filesystem>

#include "io/npy.h"
#include "io/safetensors.h"
#include "relpos/error.h"

namespace relpos::cli {

void check_extension(const std::string& path) {
  if (is_npy(path) || path.ends_with(".safetensors")) return;
  throw_error(ErrorKind::kIo, path, ": expected a file name that ends in .npy or .safetensors");
}

bool is_npy(const std::string& path) { return path == "-" || path.ends_with(".npy"); }

Tensor read_tensor(const std::string& path) {
  check_extension(path);
  if (is_npy(path)) return io::read_npy(path);
  const io::SafetensorsFile file(path);
  if (file.entries().size() != 1) {
    throw_error(ErrorKind::kIo, path, ": expected exactly one tensor, the file has ",
                file.entries().size());
  }
  return file.read(file.entries().front());
}

void write_tensor(io::Sink& sink, const std::string& path, const TensorView& tensor) {
  if (is_npy(path)) return io::write_npy(sink, tensor);
  io::write_safetensors(sink, {{std::filesystem::path(path).stem().string(), tensor}});
}

void check_format(const std::string& path, DType dtype) {
  check_extension(path);
  if (is_npy(path) && dtype == DType::kBFloat16) {
    throw_error(ErrorKind::kIo, path, ": .npy has no bfloat16: write .safetensors");
  }
}

}  // namespace relpos::cli
