// relpos._core: the C++ API on borrowed memory. A tensor is None or (address, dtype code, shape,
// strides in elements); a position is its canonical text and a flat list of parameter tensors.
#include <Python.h>
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wshadow"
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>
#pragma GCC diagnostic pop

#include <array>
#include <exception>
#include <new>
#include <optional>
#include <string>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "relpos/relpos.h"

namespace nb = nanobind;

namespace relpos {
namespace {

constexpr Py_ssize_t kUsualRank = 4;

// Reads a tuple of `rank` ints; false where it is none, or holds what TensorView's constructor has to
// judge: a negative or large one. Offsets of kUsualRank small sizes and strides stay below 2^61 bytes.
bool read_small(nb::handle from, Py_ssize_t rank, std::array<int64_t, kMaxRank>& to) {
  constexpr int64_t kLarge = int64_t{1} << 28;
  if (!PyTuple_Check(from.ptr()) || PyTuple_GET_SIZE(from.ptr()) != rank) return false;
  for (Py_ssize_t n = 0; n < rank; ++n) {
    const int64_t value = PyLong_AsLongLong(PyTuple_GET_ITEM(from.ptr(), n));
    if (value < 0 || value >= kLarge) {
      PyErr_Clear();
      return false;
    }
    to[static_cast<size_t>(n)] = value;
  }
  return true;
}

TensorView to_view(nb::handle tensor) {
  if (tensor.is_none()) return {};
  const auto fields = nb::cast<nb::tuple>(tensor);
  const auto code = nb::cast<int>(fields[1]);
  check_value(code >= 0 && code <= static_cast<int>(DType::kBool), "dtype code: got ", code);
  TensorView view;
  const Py_ssize_t rank = PyTuple_Check(fields[2].ptr()) ? PyTuple_GET_SIZE(fields[2].ptr()) : -1;
  if (rank >= 0 && rank <= kUsualRank && read_small(fields[2], rank, view.shape) &&
      read_small(fields[3], rank, view.strides)) {
    view.data = reinterpret_cast<void*>(nb::cast<uintptr_t>(fields[0]));
    view.dtype = static_cast<DType>(code);
    view.rank = static_cast<int>(rank);
    int64_t numel = 1;
    bool fits = true;
    for (Py_ssize_t n = 0; n < rank; ++n) {
      fits = fits && !__builtin_mul_overflow(numel, view.shape[static_cast<size_t>(n)], &numel);
    }
    if (fits) return view;
  }
  return TensorView(reinterpret_cast<void*>(nb::cast<uintptr_t>(fields[0])),
                    static_cast<DType>(code), nb::cast<std::vector<int64_t>>(fields[2]),
                    nb::cast<std::vector<int64_t>>(fields[3]));
}

std::vector<TensorView> to_views(nb::handle tensors) {
  std::vector<TensorView> views;
  for (nb::handle tensor : tensors) views.push_back(to_view(tensor));
  return views;
}

// Fills in the parameters of `text`, parsed once. Needs the GIL.
Position to_position(const std::string& text, const std::vector<TensorView>& parameters) {
  static std::unordered_map<std::string, Position> cache;
  if (text.empty()) return {};
  auto found = cache.find(text);
  if (found == cache.end()) {
    Position parsed = parse_position(text);
    for (size_t p = 0; p < parsed.parts.size(); ++p) {
      parsed.parts[p].parameters.resize(parsed.parameter_specs(p).size());
    }
    if (cache.size() >= 1024) cache.clear();
    found = cache.emplace(text, std::move(parsed)).first;
  }
  Position position = found->second;
  size_t next = 0;
  for (Part& part : position.parts) {
    for (TensorView& parameter : part.parameters) {
      check_value(next < parameters.size(), "parameters: expected more than ", parameters.size(),
                  " for ", text);
      parameter = parameters[next++];
    }
  }
  check_value(next == parameters.size(), "parameters: expected ", next, " for ", text, ", got ",
              parameters.size());
  return position;
}

Part to_part(const std::string& text, const std::vector<TensorView>& parameters) {
  Position position = to_position(text, parameters);
  check_value(position.parts.size() == 1, "position: expected one scheme, got ", text);
  return std::move(position.parts[0]);
}

Path& forced_path() {
  static Path path = Path::kAuto;
  return path;
}

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

std::optional<Offset> to_offset(nb::handle rows, nb::handle number) {
  if (!rows.is_none()) return Offset(to_view(rows));
  if (!number.is_none()) return Offset(nb::cast<int64_t>(number));
  return std::nullopt;
}

// The order is that of relpos._ops.OPTIONS.
Options to_options(const nb::tuple& given, Signals& signals) {
  Options options;
  options.attn_mask = to_view(given[0]);
  options.key_padding_mask = to_view(given[1]);
  options.q_offset = to_offset(given[2], given[15]);
  if (auto offset = to_offset(given[3], given[16])) options.k_offset = *offset;
  options.q_positions = to_view(given[4]);
  options.k_positions = to_view(given[5]);
  options.key_lo = to_view(given[6]);
  options.key_hi = to_view(given[7]);
  if (const TensorView seed = to_view(given[8]); seed.given()) {
    options.seed = static_cast<uint64_t>(seed.load_int(0));
  }
  options.dropout_p = nb::cast<double>(given[10]);
  options.is_causal = nb::cast<bool>(given[11]);
  options.scale = nb::cast<std::optional<double>>(given[12]);
  options.enable_gqa = nb::cast<bool>(given[13]);
  options.window = nb::cast<std::optional<std::pair<int64_t, int64_t>>>(given[14]);
  options.cancel = signals.token();
  options.path = forced_path();
  return options;
}

// One call's position and options, read from the tuple of options.
struct Call {
  Call(const nb::tuple& given, const nb::handle& parameters)
      : options(to_options(given, signals)),
        position(to_position(nb::cast<std::string>(given[9]), to_views(parameters))) {}
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  // Deals a flat list of gradients, None where not wanted, to the parts.
  std::vector<std::vector<TensorView>> deal(const nb::handle& gradients) const {
    const std::vector<TensorView> views = to_views(gradients);
    std::vector<std::vector<TensorView>> dealt;
    size_t next = 0;
    for (const Part& part : position.parts) {
      dealt.emplace_back();
      for (size_t n = 0; n < part.parameters.size(); ++n) dealt.back().push_back(views.at(next++));
    }
    return dealt;
  }

  Signals signals;
  Options options;
  Position position;
};

nb::object to_python(const OptionValue& value) {
  return std::visit(
      [](const auto& held) -> nb::object {
        if constexpr (std::is_same_v<std::decay_t<decltype(held)>, std::monostate>) {
          return nb::none();
        } else {
          return nb::cast(held);
        }
      },
      value);
}

OptionValue to_option(nb::handle value) {
  if (value.is_none()) return std::monostate{};
  if (PyBool_Check(value.ptr())) return nb::cast<bool>(value);
  if (PyLong_Check(value.ptr())) return nb::cast<int64_t>(value);
  if (PyFloat_Check(value.ptr())) return nb::cast<double>(value);
  if (PyUnicode_Check(value.ptr())) return nb::cast<std::string>(value);
  return nb::cast<std::vector<double>>(value);
}

const Scheme& to_scheme(const std::string& name) {
  const Scheme* found = find_scheme(name);
  check_value(found != nullptr, "scheme: there is none named ", name);
  return *found;
}

std::vector<std::pair<std::string, OptionValue>> to_given(const nb::dict& options) {
  std::vector<std::pair<std::string, OptionValue>> given;
  for (auto [name, value] : options) {
    given.emplace_back(nb::cast<std::string>(name), to_option(value));
  }
  return given;
}

Part to_part(const std::string& scheme, const nb::dict& options) {
  const Scheme& found = to_scheme(scheme);
  return {&found, make_options(found, to_given(options)), {}};
}

const char* type_name(OptionType type) {
  switch (type) {
    case OptionType::kBool:
      return "bool";
    case OptionType::kInt:
      return "int";
    case OptionType::kFloat:
      return "float";
    case OptionType::kChoice:
      return "choice";
    case OptionType::kChoiceOrValues:
      return "choice or values";
  }
  return "";
}

nb::list list_schemes() {
  nb::list list;
  for (const Scheme& scheme : schemes()) {
    nb::list options;
    for (const OptionSpec& spec : scheme.options) {
      nb::dict option;
      option["name"] = spec.name;
      option["type"] = type_name(spec.type);
      option["default"] = to_python(spec.fallback);
      option["required"] = spec.required;
      option["positional"] = spec.positional;
      option["choices"] = nb::tuple(nb::cast(spec.choices));
      option["doc"] = spec.doc;
      options.append(option);
    }
    nb::dict entry;
    entry["name"] = scheme.name;
    entry["class_name"] = scheme.class_name;
    entry["summary"] = scheme.summary;
    entry["source"] = scheme.source;
    entry["options"] = options;
    list.append(entry);
  }
  return list;
}

// The canonical text, the complete options, the parameters and the rotated size of a scheme.
nb::dict describe(const std::string& scheme, const nb::dict& given) {
  Position position;
  position.parts.push_back(to_part(scheme, given));
  nb::dict options;
  for (const auto& [name, value] : position.parts[0].options.items()) {
    options[name.c_str()] = to_python(value);
  }
  nb::list parameters;
  for (const ParameterSpec& spec : position.parameter_specs(0)) {
    const char* kind = spec.init.kind == Init::Kind::kUniform  ? "uniform"
                       : spec.init.kind == Init::Kind::kNormal ? "normal"
                                                               : "values";
    nb::dict parameter;
    parameter["name"] = spec.name;
    parameter["shape"] = nb::tuple(nb::cast(spec.shape));
    parameter["init"] = kind;
    parameter["spread"] = spec.init.spread;
    parameter["values"] = nb::tuple(nb::cast(spec.init.values));
    parameter["trainable"] = spec.trainable;
    parameter["doc"] = spec.doc;
    nb::list origins;
    for (const Origin& origin : spec.origins) {
      origins.append(nb::make_tuple(origin.project, origin.name, origin.transposed));
    }
    parameter["origins"] = nb::tuple(origins);
    parameters.append(parameter);
  }
  nb::dict description;
  description["text"] = position_text(position);
  description["options"] = options;
  description["parameters"] = parameters;
  description["rotary_dims"] = rotary_dims(position.parts[0]);
  return description;
}

nb::dict to_python(const Comparison& comparison) {
  using Outcome = Comparison::Outcome;
  nb::dict options;
  for (const auto& [name, value] : comparison.options) options[name.c_str()] = to_python(value);
  nb::dict entry;
  entry["outcome"] = comparison.outcome == Outcome::kFits      ? "fits"
                     : comparison.outcome == Outcome::kDiffers ? "differs"
                                                               : "shape";
  entry["convention"] = comparison.convention;
  entry["options"] = options;
  entry["note"] = comparison.note;
  entry["compared"] = comparison.compared;
  entry["largest_difference"] = comparison.largest;
  entry["index"] = nb::tuple(nb::cast(comparison.index));
  entry["expected"] = comparison.expected;
  entry["found"] = comparison.found;
  return entry;
}

// The verdict and every comparison.
nb::tuple check_tensor(const std::string& scheme, const nb::dict& options, nb::handle tensor,
                       const std::string& name) {
  const TensorView view = to_view(tensor);
  const CheckReport report = check(to_scheme(scheme), to_given(options), view, name);
  nb::list comparisons;
  for (const Comparison& comparison : report.comparisons) comparisons.append(to_python(comparison));
  return nb::make_tuple(verdict_name(report.verdict), comparisons);
}

nb::list list_steps(const std::string& text, const nb::handle& parameters, int64_t queries,
                    int64_t keys, std::optional<int64_t> q_offset) {
  const Part part = to_part(text, to_views(parameters));
  nb::list list;
  for (const Step& step : steps(part, make_grid(queries, keys, q_offset))) {
    const char* kind = step.kind == Step::Kind::kInteger ? "integer"
                       : step.kind == Step::Kind::kReal  ? "real"
                                                         : "boolean";
    const nb::bytes values(step.values.data(), step.values.size() * sizeof(double));
    list.append(nb::make_tuple(step.name, kind, nb::tuple(nb::cast(step.shape)), values));
  }
  return list;
}

void bind_attention(nb::module_& module) {
  module.def("attention",
             [](nb::handle query, nb::handle key, nb::handle value, const nb::tuple& options,
                nb::handle parameters, nb::handle out, nb::handle lse) {
               Call call(options, parameters);
               const TensorView q = to_view(query), k = to_view(key), v = to_view(value);
               const TensorView o = to_view(out), l = to_view(lse);
               call.signals.run([&] { attention(q, k, v, call.position, call.options, o, l); });
             });
  // tensors: query, key, value, out, lse, dout, dlse; gradients: query, key, value, attn_mask.
  module.def("attention_backward", [](const nb::tuple& tensors, const nb::tuple& options,
                                      nb::handle parameters, const nb::tuple& gradients,
                                      nb::handle parameter_gradients) {
    Call call(options, parameters);
    const std::vector<TensorView> t = to_views(tensors);
    const Gradients wanted{to_view(gradients[0]), to_view(gradients[1]), to_view(gradients[2]),
                           call.deal(parameter_gradients), to_view(gradients[3])};
    call.signals.run([&] {
      attention_backward(t.at(0), t.at(1), t.at(2), t.at(3), t.at(4), t.at(5), t.at(6),
                         call.position, call.options, wanted);
    });
  });
  module.def(
      "attention_weights", [](nb::handle query, nb::handle key, nb::handle lse,
                              const nb::tuple& options, nb::handle parameters, nb::handle weights) {
        Call call(options, parameters);
        const TensorView q = to_view(query), k = to_view(key);
        const TensorView l = to_view(lse), w = to_view(weights);
        call.signals.run([&] { attention_weights(q, k, l, call.position, call.options, w); });
      });
  module.def("scores", [](nb::handle query, nb::handle key, const nb::tuple& options,
                          nb::handle parameters, nb::handle out) {
    Call call(options, parameters);
    const TensorView q = to_view(query), k = to_view(key), o = to_view(out);
    call.signals.run([&] { scores(q, k, call.position, call.options, o); });
  });
  module.def("scores_backward", [](nb::handle query, nb::handle key, nb::handle dscores,
                                   const nb::tuple& options, nb::handle parameters,
                                   const nb::tuple& gradients, nb::handle parameter_gradients) {
    Call call(options, parameters);
    const TensorView q = to_view(query), k = to_view(key), d = to_view(dscores);
    const Gradients wanted{to_view(gradients[0]),
                           to_view(gradients[1]),
                           {},
                           call.deal(parameter_gradients),
                           to_view(gradients[2])};
    call.signals.run([&] { scores_backward(q, k, d, call.position, call.options, wanted); });
  });
  module.def("workspace_bytes", [](nb::handle query, nb::handle key, nb::handle value,
                                   const nb::tuple& options, nb::handle parameters, bool backward) {
    const Call call(options, parameters);
    return workspace_bytes(to_view(query), to_view(key), to_view(value), call.position,
                           call.options, backward);
  });
}

void bind_positions(nb::module_& module) {
  using Text = const std::string&;
  using OptionalInt = std::optional<int64_t>;
  module.def("schemes", &list_schemes);
  module.def("describe", &describe);
  module.def("check", &check_tensor);
  module.def("is_held_as",
             [](Text scheme, Text name) { return is_held_as(to_scheme(scheme), name); });
  module.def("steps", &list_steps, nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg().none());
  module.def(
      "dense_shape",
      [](Text text, nb::handle parameters, int64_t queries, int64_t keys, OptionalInt q_offset,
         Text which) {
        const Part part = to_part(text, to_views(parameters));
        return dense_shape(part, make_grid(queries, keys, q_offset), which);
      },
      nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg().none(), nb::arg());
  module.def("dense", [](Text text, nb::handle parameters, int64_t queries, int64_t keys,
                         int64_t q_offset, Text which, nb::handle out) {
    const Part part = to_part(text, to_views(parameters));
    const TensorView o = to_view(out);
    Signals().run([&] { dense(part, {queries, keys, q_offset}, which, o); });
  });
  module.def(
      "dense_backward", [](Text text, nb::handle parameters, int64_t queries, int64_t keys,
                           int64_t q_offset, Text which, nb::handle dout, nb::handle gradients) {
        const Part part = to_part(text, to_views(parameters));
        const TensorView d = to_view(dout);
        const std::vector<TensorView> wanted = to_views(gradients);
        Signals().run([&] { dense_backward(part, {queries, keys, q_offset}, which, d, wanted); });
      });
  module.def(
      "indices",
      [](Text text, nb::handle parameters, int64_t queries, int64_t keys, OptionalInt q_offset,
         nb::handle out) {
        const Part part = to_part(text, to_views(parameters));
        indices(part, make_grid(queries, keys, q_offset), to_view(out));
      },
      nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg().none(), nb::arg());
  module.def("rotary_tables", [](Text text, nb::handle parameters, int64_t length, int64_t offset,
                                 nb::handle cos, nb::handle sin) {
    const Part part = to_part(text, to_views(parameters));
    const TensorView c = to_view(cos), s = to_view(sin);
    Signals().run([&] { rotary_tables(part, length, offset, c, s); });
  });
  module.def(
      "rotate",
      [](Text text, nb::handle parameters, nb::handle x, int64_t offset, nb::handle positions,
         bool inverse, nb::handle out) {
        const Part part = to_part(text, to_views(parameters));
        const TensorView in = to_view(x), at = to_view(positions), o = to_view(out);
        Signals().run([&] { rotate(part, in, offset, at, inverse, o); });
      },
      nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg().none(), nb::arg(), nb::arg());
  // Throws where the grid's offset must be said and is not; else the offset.
  module.def(
      "grid_offset",
      [](int64_t queries, int64_t keys, OptionalInt q_offset) {
        return make_grid(queries, keys, q_offset).q_offset;
      },
      nb::arg(), nb::arg(), nb::arg().none());
}

}  // namespace
}  // namespace relpos

NB_MODULE(_core, module) {
  using relpos::ErrorKind;
  nb::register_exception_translator([](const std::exception_ptr& pointer, void*) {
    try {
      std::rethrow_exception(pointer);
    } catch (const relpos::Error& error) {
      PyObject* kind = error.kind() == ErrorKind::kType        ? PyExc_TypeError
                       : error.kind() == ErrorKind::kIo        ? PyExc_OSError
                       : error.kind() == ErrorKind::kCancelled ? PyExc_KeyboardInterrupt
                                                               : PyExc_ValueError;
      PyErr_SetString(kind, error.what());
    }
  });
  module.attr("__version__") = RELPOS_VERSION;
  relpos::bind_attention(module);
  relpos::bind_positions(module);
  module.def("show_config", [] {
    nb::dict config;
    for (const auto& [name, value] : relpos::show_config()) config[name.c_str()] = value;
    return config;
  });
  // For tests and benches: "auto", "fused" or "reference", for every later call of the process.
  module.def("force_path", [](const std::string& path) {
    relpos::check_value(path == "auto" || path == "fused" || path == "reference",
                        "path: expected auto, fused or reference, got ", path);
    relpos::forced_path() = path == "fused"       ? relpos::Path::kFused
                            : path == "reference" ? relpos::Path::kReference
                                                  : relpos::Path::kAuto;
  });
}
