#include "files.h"

#include <filesystem>

#include "io/npy.h"
#include "io/safetensors.h"
#include "relpos/error.h"

namespace relpos::cli {
namespace {

constexpr const char* kNpy = ".npy";
constexpr const char* kSafetensors = ".safetensors";

[[noreturn]] void refuse_extension(const std::string& path) {
  throw_error(ErrorKind::kIo, path, ": expected a file name that ends in .npy or .safetensors");
}

}  // namespace

bool has_extension(const std::string& path, const char* extension) {
  return path.ends_with(extension);
}

Tensor read_tensor(const std::string& path) {
  if (has_extension(path, kNpy)) return io::read_npy(path);
  if (!has_extension(path, kSafetensors)) refuse_extension(path);
  const io::SafetensorsFile file(path);
  if (file.entries().size() != 1) {
    throw_error(ErrorKind::kIo, path, ": expected exactly one tensor, the file has ",
                file.entries().size());
  }
  return file.read(file.entries().front());
}

void write_tensor(const std::string& path, const TensorView& tensor) {
  if (has_extension(path, kNpy)) return io::write_npy(path, tensor);
  if (!has_extension(path, kSafetensors)) refuse_extension(path);
  io::write_safetensors(path, {{std::filesystem::path(path).stem().string(), tensor}});
}

void check_writable(const std::string& path, DType dtype) {
  namespace fs = std::filesystem;
  if (!has_extension(path, kNpy) && !has_extension(path, kSafetensors)) refuse_extension(path);
  if (has_extension(path, kNpy) && dtype == DType::kBFloat16) {
    throw_error(ErrorKind::kIo, path, ": .npy has no bfloat16: write .safetensors");
  }
  const fs::path folder = fs::path(path).parent_path();
  std::error_code code;
  if (!folder.empty() && !fs::is_directory(folder, code)) {
    throw_error(ErrorKind::kIo, path, ": there is no folder ", folder.string());
  }
}

}  // namespace relpos::cli
