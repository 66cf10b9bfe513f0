// Results of calls in the library's kept blocks, so that a step of training touches no page that is new.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "arguments.h"
#include "base/buffer.h"

namespace relpos {
namespace {

// A DLManagedTensor of DLPack (dlpack.h, version 1.3) that owns its memory. Its deleter may run on any
// thread, without the GIL, and after Python has ended.
struct Kept {
  nb::dlpack::dltensor tensor{};
  void* context = nullptr;
  void (*deleter)(Kept*) = [](Kept* self) { delete self; };

  Kept(const std::vector<int64_t>& sizes, DType dtype, size_t bytes)
      : memory(detail::take_memory(bytes)), shape(sizes), strides(sizes.size(), 1) {
    using Code = nb::dlpack::dtype_code;
    for (size_t axis = shape.size(); axis-- > 1;) {
      strides[axis - 1] = strides[axis] * std::max<int64_t>(1, shape[axis]);
    }
    tensor.data = memory.data;
    tensor.device = {nb::device::cpu::value, 0};
    tensor.ndim = static_cast<int32_t>(shape.size());
    const Code code = dtype == DType::kBFloat16 ? Code::Bfloat : Code::Float;
    tensor.dtype = {static_cast<uint8_t>(code), static_cast<uint8_t>(8 * item_size(dtype)), 1};
    tensor.shape = shape.data();
    tensor.strides = strides.data();
  }
  ~Kept() { detail::give_memory(memory); }
  Kept(const Kept&) = delete;
  Kept& operator=(const Kept&) = delete;

  detail::Memory memory;
  std::vector<int64_t> shape, strides;
};

constexpr const char* kUnused = "dltensor";  // a capsule's name until somebody takes its tensor

// A capsule of DLPack: contiguous, uninitialised numbers of the dtype of `like`, which is a floating one.
nb::object kept_tensor(const std::vector<int64_t>& shape, nb::handle like) {
  const DType dtype = to_view(like, "like").dtype;
  const auto bytes = static_cast<size_t>(checked_numel(shape, "kept_tensor")) *
                     static_cast<size_t>(item_size(dtype));
  auto kept = std::make_unique<Kept>(shape, dtype, bytes);
  PyObject* capsule = PyCapsule_New(kept.get(), kUnused, [](PyObject* unused) {
    if (PyCapsule_IsValid(unused, kUnused) == 0) return;
    delete static_cast<Kept*>(PyCapsule_GetPointer(unused, kUnused));
  });
  if (capsule == nullptr) throw nb::python_error();
  kept.release();
  return nb::steal(capsule);
}

}  // namespace

void bind_kept(nb::module_& module) { module.def("kept_tensor", &kept_tensor); }

}  // namespace relpos
