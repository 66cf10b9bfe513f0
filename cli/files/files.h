// Tensors by file name: the extension says the format; "-" is .npy on a standard stream.
#pragma once

#include <string>

#include "io/file.h"
#include "relpos/tensor.h"

namespace relpos::cli {

// Throws Error where the name has another extension.
void check_extension(const std::string& path);
bool is_npy(const std::string& path);  // by name; "-" is

// .npy, or .safetensors with exactly one tensor. Errors start with the path.
Tensor read_tensor(const std::string& path);
void write_tensor(io::Sink& sink, const std::string& path, const TensorView& tensor);

// Throws before any work is done where `path` has another extension or cannot hold the dtype.
void check_format(const std::string& path, DType dtype);

}  // namespace relpos::cli
