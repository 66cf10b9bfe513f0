// Results of calls in the library's memory: large ones lie in kept blocks, so that a step of training touches no
// page that is new, and small ones cost no call of Python.
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "arguments.h"
#include "base/buffer.h"

namespace relpos {
namespace {

// Memory that a tensor of another library owns. It may be freed on any thread, without the GIL, and after
// Python has ended.
struct Owned {
  Owned(const std::vector<int64_t>& shape, DType dtype)
      : view(nullptr, dtype, shape),  // throws where a size is too large
        memory(detail::take_memory(static_cast<size_t>(view.numel()) *
                                   static_cast<size_t>(item_size(dtype)))) {
    view.data = memory.data;
  }
  ~Owned() { detail::give_memory(memory); }
  Owned(const Owned&) = delete;
  Owned& operator=(const Owned&) = delete;

  // As DLPack says it, while this lives.
  nb::dlpack::dltensor shown() {
    using Code = nb::dlpack::dtype_code;
    const Code code = view.dtype == DType::kBFloat16 ? Code::Bfloat : Code::Float;
    nb::dlpack::dltensor tensor{};
    tensor.data = memory.data;
    tensor.device = {nb::device::cpu::value, 0};
    tensor.ndim = view.rank;
    tensor.dtype = {static_cast<uint8_t>(code), static_cast<uint8_t>(8 * item_size(view.dtype)), 1};
    tensor.shape = view.shape.data();
    tensor.strides = view.strides.data();
    return tensor;
  }

  TensorView view;
  detail::Memory memory;
};

// DLPack's two structs for a tensor with its owner (dlpack.h, version 1.3).
struct Managed : Owned {
  using Owned::Owned;
  struct Head {
    nb::dlpack::dltensor tensor;
    void* context;
    void (*deleter)(Head*);
  } head{shown(), this, [](Head* self) { delete static_cast<Managed*>(self->context); }};
};
struct Versioned : Owned {
  using Owned::Owned;
  struct Head {
    uint32_t major, minor;
    void* context;
    void (*deleter)(Head*);
    uint64_t flags;
    nb::dlpack::dltensor tensor;
  } head{1, 0, this, [](Head* self) { end(static_cast<Versioned*>(self->context)); }, 0, shown()};
  bool* ended = nullptr;  // becomes true as this ends

 private:
  static void end(Versioned* self) {
    if (self->ended != nullptr) *self->ended = true;
    delete self;
  }
};

constexpr const char* kUnused = "dltensor";  // a capsule's name until somebody takes its tensor

// A capsule of DLPack: contiguous, uninitialised numbers of the dtype of `like`, which is a floating one.
nb::object kept_tensor(const std::vector<int64_t>& shape, nb::handle like) {
  auto kept = std::make_unique<Managed>(shape, to_view(like, "like").dtype);
  PyObject* capsule = PyCapsule_New(&kept->head, kUnused, [](PyObject* unused) {
    if (PyCapsule_IsValid(unused, kUnused) == 0) return;
    auto* head = static_cast<Managed::Head*>(PyCapsule_GetPointer(unused, kUnused));
    head->deleter(head);
  });
  if (capsule == nullptr) throw nb::python_error();
  static_cast<void>(kept.release());
  return nb::steal(capsule);
}

}  // namespace

NewTensor new_tensor(const std::vector<int64_t>& shape, DType dtype) {
  auto kept = std::make_unique<Versioned>(shape, dtype);
  const TensorView view = kept->view;
  // PyTorch ends it where no object could be made of its tensor, and not where it refuses it.
  bool ended = false;
  kept->ended = &ended;
  Versioned* own = kept.release();
  try {
    nb::object tensor = to_torch(&own->head);
    own->ended = nullptr;
    return {std::move(tensor), view};
  } catch (...) {
    if (!ended) delete own;
    throw;
  }
}

void bind_kept(nb::module_& module) { module.def("kept_tensor", &kept_tensor); }

}  // namespace relpos
