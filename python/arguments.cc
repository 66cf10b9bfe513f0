#include "arguments.h"

#include <algorithm>
#include <cstdint>
#include <mutex>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "relpos/family.h"

namespace relpos {
namespace {

// The part of DLPack's DLPackExchangeAPI that is used here (dlpack.h, version 1.3).
struct ExchangeApi {
  uint32_t major, minor;
  void* previous;
  void *allocate, *from_tensor;
  int (*to_tensor)(void* managed, void** tensor);          // -1 with Python's error set
  int (*show)(void* tensor, nb::dlpack::dltensor* shown);  // -1 with Python's error set
};

struct Torch {
  const ExchangeApi* api = nullptr;
  nb::tuple types, observers;
  nb::object grad_enabled;
  nb::object requires_grad = nb::steal(PyUnicode_InternFromString("requires_grad"));
  nb::object is_neg = nb::steal(PyUnicode_InternFromString("is_neg"));
};

// Never destroyed: at exit Python is gone before the library.
Torch& torch() {
  static auto* known = new Torch;
  return *known;
}

bool is_true(PyObject* value) {
  const nb::object held = nb::steal(value);
  const int truth = value == nullptr ? -1 : PyObject_IsTrue(value);
  if (truth < 0) throw nb::python_error();
  return truth > 0;
}

// value.name(), in the stable ABI.
PyObject* called(nb::handle value, nb::handle name) {
  PyObject* self = value.ptr();
  return PyObject_VectorcallMethod(name.ptr(), &self, 1 | PY_VECTORCALL_ARGUMENTS_OFFSET, nullptr);
}

bool is_tensor(nb::handle value) {
  if (torch().types.size() == 0) return false;
  const nb::handle tensor = torch().types[0];
  return PyType_IsSubtype(Py_TYPE(value.ptr()), reinterpret_cast<PyTypeObject*>(tensor.ptr())) != 0;
}

// `tensor` must be one: the exchange API takes its word for it.
bool shows(nb::handle tensor, nb::dlpack::dltensor& shown) {
  const ExchangeApi* api = torch().api;
  if (api == nullptr) return false;
  if (api->show(tensor.ptr(), &shown) == 0) return true;
  PyErr_Clear();  // not dense, or without memory: its attributes tell
  return false;
}

bool is_on_cpu(const nb::dlpack::dltensor& shown) {
  return shown.device.device_type == nb::device::cpu::value;
}

// Whether there is memory at `data`. A tensor whose storage was freed, or never had any, shows its
// offset alone, below every address that an allocator gives; so only the storage of a tensor at a
// small address is asked.
bool has_memory(nb::handle tensor, const void* data, int rank, const int64_t* shape) {
  constexpr uintptr_t kSmall = uintptr_t{1} << 40;
  if (reinterpret_cast<uintptr_t>(data) >= kSmall) return true;
  if (std::find(shape, shape + rank, 0) != shape + rank) return true;
  if (data == nullptr) return false;
  return nb::cast<uintptr_t>(tensor.attr("untyped_storage")().attr("data_ptr")()) != 0;
}

void* data_of(const nb::dlpack::dltensor& shown) {
  return static_cast<char*>(shown.data) + shown.byte_offset;
}

// Whether a value of a call is no tensor, or one that is memory of the CPU; `records` becomes true where
// that needs a gradient and `grad`.
bool is_plain(nb::handle value, bool grad, nb::dlpack::dltensor& shown, bool& records) {
  if (value.is_none()) return true;
  bool known = false;
  for (nb::handle type : torch().types) {
    known = known || reinterpret_cast<PyObject*>(Py_TYPE(value.ptr())) == type.ptr();
  }
  if (!known || !shows(value, shown) || !is_on_cpu(shown) ||
      !has_memory(value, data_of(shown), shown.ndim, shown.shape) ||
      is_true(called(value, torch().is_neg))) {
    return false;
  }
  records =
      records || (grad && is_true(PyObject_GetAttr(value.ptr(), torch().requires_grad.ptr())));
  return true;
}

std::string attribute_text(nb::handle tensor, const char* name) {
  const nb::object value = tensor.attr(name);
  return nb::str(value).c_str();
}

// `prefix` stands before the name of each dtype.
DType to_dtype(const std::string& name, const std::string& prefix) {
  for (int code = 0; code <= static_cast<int>(DType::kUInt8); ++code) {
    const auto dtype = static_cast<DType>(code);
    if (name == prefix + dtype_name(dtype)) return dtype;
  }
  throw Error(ErrorKind::kType, "expected a floating, integer or bool tensor, got " + name);
}

DType to_dtype(nb::handle tensor) { return to_dtype(attribute_text(tensor, "dtype"), "torch."); }

DType to_dtype(nb::handle tensor, nb::dlpack::dtype shown) {
  using Code = nb::dlpack::dtype_code;
  constexpr std::tuple<Code, int, DType> kKnown[] = {
      {Code::Float, 32, DType::kFloat32},   {Code::Float, 64, DType::kFloat64},
      {Code::Bfloat, 16, DType::kBFloat16}, {Code::Float, 16, DType::kFloat16},
      {Code::Int, 64, DType::kInt64},       {Code::Int, 32, DType::kInt32},
      {Code::Bool, 8, DType::kBool},        {Code::UInt, 8, DType::kUInt8},
  };
  for (const auto& [code, bits, dtype] : kKnown) {
    if (static_cast<Code>(shown.code) == code && shown.bits == bits) return dtype;
  }
  return to_dtype(tensor);
}

// As TensorView's constructor, which judges what is negative or large and is slower. Offsets of four
// small sizes and strides stay below 2^61 bytes.
TensorView make_view(void* data, DType dtype, int rank, const int64_t* shape,
                     const int64_t* strides) {
  constexpr uint64_t kLarge = uint64_t{1} << 28;
  constexpr int kUsualRank = 4;
  TensorView view;
  view.data = data;
  view.dtype = dtype;
  view.rank = rank;
  int64_t numel = 1;
  bool small = rank <= kUsualRank;
  for (int n = 0; n < rank && small; ++n) {
    small = static_cast<uint64_t>(shape[n]) < kLarge &&
            static_cast<uint64_t>(strides[n]) < kLarge &&
            !__builtin_mul_overflow(numel, shape[n], &numel);
    view.shape[static_cast<size_t>(n)] = shape[n];
    view.strides[static_cast<size_t>(n)] = strides[n];
  }
  if (small) return view;
  return TensorView(data, dtype, {shape, shape + rank}, {strides, strides + rank});
}

void check_on_cpu(bool on_cpu, nb::handle tensor) {
  if (on_cpu) return;
  check_value(false, "expected a tensor on the CPU, got ", attribute_text(tensor, "device"),
              ": move it with .cpu()");
}

void check_memory(nb::handle tensor, const void* data, int rank, const int64_t* shape) {
  check_value(has_memory(tensor, data, rank, shape),
              "expected a tensor with memory, got one without: its storage was freed, or it is a "
              "stand-in for zeros or for a shape");
}

}  // namespace

nb::object to_torch(void* managed) {
  void* made = nullptr;
  check_value(torch().api != nullptr,
              "expected PyTorch 2.10 or later, which has DLPack's exchange API");
  if (torch().api->to_tensor(managed, &made) != 0) throw nb::python_error();
  return nb::steal(static_cast<PyObject*>(made));
}

TensorView memory_of(nb::handle tensor) {
  if (!is_tensor(tensor)) {
    if (nb::isinstance<Memory>(tensor)) return nb::inst_ptr<Memory>(tensor)->view;
    throw_error(ErrorKind::kType, "expected a torch.Tensor, got ",
                nb::type_name(tensor.type()).c_str());
  }
  nb::dlpack::dltensor shown;
  if (shows(tensor, shown)) {
    check_on_cpu(is_on_cpu(shown), tensor);
    check_memory(tensor, data_of(shown), shown.ndim, shown.shape);
    return make_view(data_of(shown), to_dtype(tensor, shown.dtype), shown.ndim, shown.shape,
                     shown.strides);
  }
  check_on_cpu(nb::cast<bool>(tensor.attr("is_cpu")), tensor);
  const std::string layout = attribute_text(tensor, "layout");
  if (layout != "torch.strided" || nb::cast<bool>(tensor.attr("is_nested"))) {
    throw_error(ErrorKind::kType, "expected a dense tensor, got ",
                layout == "torch.strided" ? "a nested one" : layout);
  }
  const DType dtype = to_dtype(tensor);
  const auto shape = nb::cast<std::vector<int64_t>>(tensor.attr("shape"));
  const auto strides = nb::cast<std::vector<int64_t>>(tensor.attr("stride")());
  check_value(shape.size() == strides.size(), "expected one stride for each axis");
  const int rank = static_cast<int>(shape.size());
  auto* data = reinterpret_cast<void*>(nb::cast<uintptr_t>(tensor.attr("data_ptr")()));
  check_memory(tensor, data, rank, shape.data());
  return make_view(data, dtype, rank, shape.data(), strides.data());
}

TensorView shape_of(nb::handle tensor) {
  return blank_view(nb::cast<std::vector<int64_t>>(tensor.attr("shape")), to_dtype(tensor));
}

void use_torch(nb::object exchange, nb::tuple types, nb::object grad_enabled, nb::tuple observers) {
  const ExchangeApi* api = nullptr;
  if (!exchange.is_none()) {
    api = static_cast<const ExchangeApi*>(
        PyCapsule_GetPointer(exchange.ptr(), "dlpack_exchange_api"));
    if (api == nullptr) throw nb::python_error();
    if (api->major != 1 || api->show == nullptr || api->to_tensor == nullptr) api = nullptr;
  }
  torch().api = api;
  torch().types = std::move(types);
  torch().grad_enabled = std::move(grad_enabled);
  torch().observers = std::move(observers);
}

SeenBy seen_by(nb::handle query, nb::handle key, nb::handle value, const nb::tuple& options) {
  const bool grad = is_true(PyObject_CallNoArgs(torch().grad_enabled.ptr()));
  bool records = false;
  nb::dlpack::dltensor first, shown;
  for (nb::handle tensor : {query, key, value}) {
    if (tensor.is_none() || !is_plain(tensor, grad, shown, records)) return kOthers;
    if (tensor.is(query)) first = shown;
    const auto code = static_cast<nb::dlpack::dtype_code>(shown.dtype.code);
    if (shown.ndim != 4 || shown.dtype != first.dtype) return kOthers;
    if (code != nb::dlpack::dtype_code::Float && code != nb::dlpack::dtype_code::Bfloat) {
      return kOthers;
    }
  }
  for (nb::handle field : options) {
    PyObject* held = field.ptr();
    if (PyBool_Check(held) || PyFloat_Check(held) || PyLong_Check(held) || PyUnicode_Check(held)) {
      continue;
    }
    if (!PyTuple_Check(held) && !PyList_Check(held)) {
      if (!is_plain(field, grad, shown, records)) return kOthers;
      continue;
    }
    for (nb::handle item : nb::borrow<nb::sequence>(field)) {
      if (!PyLong_Check(item.ptr()) && !is_plain(item, grad, shown, records)) return kOthers;
    }
  }
  for (nb::handle each : torch().observers) {
    if (is_true(PyObject_CallNoArgs(each.ptr()))) return kOthers;
  }
  return records ? kAutograd : kNobody;
}

TensorView to_view(nb::handle tensor, const char* name, ReadTensor read) {
  if (tensor.is_none()) return {};
  try {
    return read(tensor);
  } catch (const Error& error) {
    throw Error(error.kind(), std::string(name) + ": " + error.what());
  }
}

std::vector<TensorView> to_views(nb::handle tensors, const char* name) {
  std::vector<TensorView> views;
  for (nb::handle tensor : tensors) views.push_back(to_view(tensor, name));
  return views;
}

std::vector<TensorView> to_views(nb::handle tensors, std::initializer_list<const char*> names) {
  std::vector<TensorView> views;
  const auto* name = names.begin();
  check_value(nb::len(tensors) == names.size(), "tensors: expected ", names.size(), ", got ",
              nb::len(tensors));
  for (nb::handle tensor : tensors) views.push_back(to_view(tensor, *name++));
  return views;
}

TensorView blank_view(const std::vector<int64_t>& shape, DType dtype) {
  static double zero = 0.0;  // whose bits are those of the integer 0
  return TensorView(&zero, dtype, shape, std::vector<int64_t>(shape.size()));
}

Path& forced_path() {
  static Path path = Path::kAuto;
  return path;
}

Position parsed(const std::string& text) {
  static std::mutex mutex;
  static std::unordered_map<std::string, Position> cache;
  const std::lock_guard lock(mutex);
  auto found = cache.find(text);
  if (found == cache.end()) {
    Position position = parse_position(text);
    for (Part& part : position.parts) part.parameters.resize(part.specs().size());
    if (cache.size() >= 1024) cache.clear();
    found = cache.emplace(text, std::move(position)).first;
  }
  return found->second;
}

bool stays_apart(const Position& position, bool placed) {
  if (placed && (reads_length(position) || reads_distances(position))) return true;
  return std::ranges::any_of(position.parts, [](const Part& part) {
    return std::ranges::any_of(part.specs(), [](const ParameterSpec& spec) {
      return spec.input && std::ranges::find(spec.shape, kBatch) != spec.shape.end();
    });
  });
}

Position to_position(const std::string& text, nb::handle tensors, ReadTensor read) {
  Position position;
  if (text.empty()) return position;
  position = parsed(text);
  const size_t count = nb::len(tensors);
  size_t next = 0;
  for (Part& part : position.parts) {
    for (size_t n = 0; n < part.parameters.size(); ++n, ++next) {
      check_value(next < count, "parameters: expected more than ", count, " for ", text);
      const nb::object tensor = tensors[next];
      try {
        part.parameters[n] = read(tensor);
      } catch (const Error& error) {
        throw_error(error.kind(), "position: ", part.scheme().name, ".", part.specs()[n].name, ": ",
                    error.what());
      }
    }
  }
  check_value(next == count, "parameters: expected ", next, " for ", text, ", got ", count);
  return position;
}

Part to_part(const std::string& text, nb::handle tensors) {
  Position position = to_position(text, tensors);
  check_value(position.parts.size() == 1, "position: expected one scheme, got ", text);
  return std::move(position.parts[0]);
}

Part to_part(const std::string& text, const std::vector<std::vector<int64_t>>& shapes) {
  check_value(!text.empty(), "position: expected one scheme, got none");
  Position position = parsed(text);
  check_value(position.parts.size() == 1, "position: expected one scheme, got ", text);
  Part part = std::move(position.parts[0]);
  check_value(shapes.size() == part.parameters.size(), "parameters: expected ",
              part.parameters.size(), " for ", text, ", got ", shapes.size());
  for (size_t n = 0; n < shapes.size(); ++n) {
    const ParameterSpec& spec = part.specs()[n];
    part.parameters[n] = blank_view(shapes[n], spec.integers() ? spec.integer : DType::kFloat64);
  }
  return part;
}

void bind_memory(nb::module_& module) {
  nb::class_<Memory>(module, "Memory")
      .def(
          "__init__",
          [](Memory* self, uintptr_t address, const std::string& dtype,
             const std::vector<int64_t>& shape, const std::vector<int64_t>& strides,
             nb::object owner) {
            TensorView view(reinterpret_cast<void*>(address), to_dtype(dtype, ""), shape, strides);
            new (self) Memory{view, std::move(owner)};
          },
          nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg().none());
}

}  // namespace relpos
