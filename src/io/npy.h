// NumPy's .npy, versions 1.0 to 3.0: plain numbers only, never pickle. Layout: NEP 1 and
// numpy.lib.format.
#pragma once

#include <string>

#include "io/file.h"
#include "relpos/export.h"
#include "relpos/tensor.h"

namespace relpos::io {

// float32, float64, float16, int64, int32 or bool, little-endian; either order, returned row-major.
// Nothing is allocated before the header agrees with the file's size. Throws Error (kIo).
RELPOS_EXPORT Tensor read_npy(const std::string& path);

// Version 1.0, any strides. bfloat16 has no .npy type.
RELPOS_EXPORT void write_npy(Sink& sink, const TensorView& tensor);

}  // namespace relpos::io
