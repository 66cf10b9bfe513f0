// Tensors by file name: the extension says the format.
#pragma once

#include <string>

#include "relpos/tensor.h"

namespace relpos::cli {

// .npy, or .safetensors with exactly one tensor. Errors start with the path.
Tensor read_tensor(const std::string& path);
void write_tensor(const std::string& path, const TensorView& tensor);

// Throws before any work is done where `path` has another extension, cannot hold the dtype, or its
// folder does not exist.
void check_writable(const std::string& path, DType dtype);

bool has_extension(const std::string& path, const char* extension);

}  // namespace relpos::cli
