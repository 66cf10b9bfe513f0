// What the bindings share: Python's arguments as those of the C++ API. A tensor is None, a
// torch.Tensor or a Memory; a position is its canonical text and a flat list of parameter tensors.
#pragma once

#include <Python.h>
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wshadow"
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>
#pragma GCC diagnostic pop

#include <exception>
#include <initializer_list>
#include <string>
#include <vector>

#include "relpos/relpos.h"

namespace relpos {

namespace nb = nanobind;

// Memory of the CPU that another library than PyTorch holds; `owner` keeps it.
struct Memory {
  TensorView view;
  nb::object owner;
};

// What is asked of PyTorch, given once. `exchange` is None or the capsule by which a type of tensors
// shows its memory without a call of Python (DLPack's exchange API, PyTorch 2.10 and later).
// `types`: tensors that are memory and no more, torch.Tensor first. `grad_enabled` and `observers` take no arguments.
void use_torch(nb::object exchange, nb::tuple types, nb::object grad_enabled, nb::tuple observers);
// Who would notice that a call of these tensors and options bypasses its operator: autograd alone, which
// records gradients; or others, where an observer says yes or not all tensors are memory of the CPU, query,
// key and value of rank 4 and one floating dtype. `options` may be any values.
enum SeenBy : int { kNobody, kAutograd, kOthers };
SeenBy seen_by(nb::handle query, nb::handle key, nb::handle value, const nb::tuple& options);
// A tensor of PyTorch, contiguous and uninitialised, in memory that the library keeps, and its view. For
// calls that others do not see (seen_by).
struct NewTensor {
  nb::object tensor;
  TensorView view;
};
NewTensor new_tensor(const std::vector<int64_t>& shape, DType dtype);
// A DLManagedTensorVersioned of DLPack as a tensor of PyTorch, which owns it from then on. Where this throws
// its deleter may have run, or not.
nb::object to_torch(void* managed);
// A tensor as memory of the CPU, or, wherever it lies, as zeros of its shape and dtype.
using ReadTensor = TensorView (*)(nb::handle tensor);
TensorView memory_of(nb::handle tensor);
TensorView shape_of(nb::handle tensor);
// None is a view that is not given. An error starts with `name`.
TensorView to_view(nb::handle tensor, const char* name, ReadTensor read = memory_of);
std::vector<TensorView> to_views(nb::handle tensors, const char* name);
std::vector<TensorView> to_views(nb::handle tensors, std::initializer_list<const char*> names);
// Zeros of no memory: for what depends on shapes alone.
TensorView blank_view(const std::vector<int64_t>& shape, DType dtype = DType::kFloat64);
// The path of every call from Python.
Path& forced_path();
// The position of a text that is not empty, parsed once, with room for its parameters. Any thread may
// ask.
Position parsed(const std::string& text);
// Whether calls with this position that vmap maps are no rows of one call: an input has a batch axis, or,
// where tokens of each call stand elsewhere (`placed`), terms depend on how far those of a call reach.
bool stays_apart(const Position& position, bool placed);
// Fills in the parameters of `text`; an error names the parameter. Needs the GIL.
Position to_position(const std::string& text, nb::handle tensors, ReadTensor read = memory_of);
Part to_part(const std::string& text, nb::handle tensors);
Part to_part(const std::string& text, const std::vector<std::vector<int64_t>>& shapes);

// Polls Python's signals, which only its main thread answers, and remembers what a handler raised.
class Signals {
 public:
  Signals() {
    token_.poll = [this] {
      nb::gil_scoped_acquire gil;
      if (PyErr_CheckSignals() == 0) return false;
      raised_ = std::make_exception_ptr(nb::python_error());
      return true;
    };
  }
  CancelToken* token() noexcept { return &token_; }

  // Runs `call` without the GIL; what a signal handler raised comes out as itself.
  template <typename F>
  void run(F&& call) {
    try {
      nb::gil_scoped_release no_gil;
      call();
    } catch (const Error& error) {
      if (error.kind() == ErrorKind::kCancelled && raised_) std::rethrow_exception(raised_);
      throw;
    }
  }

 private:
  CancelToken token_;
  std::exception_ptr raised_;
};

void bind_attention(nb::module_& module);
void bind_jax(nb::module_& module);
void bind_kept(nb::module_& module);
void bind_schemes(nb::module_& module);
void bind_memory(nb::module_& module);

}  // namespace relpos
