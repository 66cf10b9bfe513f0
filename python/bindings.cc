// relpos._core: the C++ API on borrowed memory, and what a position is in numbers.
#include <algorithm>
#include <optional>

#include "arguments.h"
#include "relpos/family.h"

namespace relpos {
namespace {

using Text = const std::string&;
using OptionalInt = std::optional<int64_t>;

nb::list list_steps(Text text, int64_t queries, int64_t keys, OptionalInt q_offset,
                    nb::handle parameters) {
  const Part part = to_part(text, parameters);
  nb::list list;
  const Grid grid = make_grid(queries, keys, q_offset);
  std::vector<Step> found;
  Signals signals;
  signals.run([&] { found = steps(part, grid, signals.token()); });
  for (const Step& step : found) {
    const char* kind = step.kind == Step::Kind::kInteger ? "integer"
                       : step.kind == Step::Kind::kReal  ? "real"
                                                         : "boolean";
    const nb::bytes values(step.values.data(), step.values.size() * sizeof(double));
    list.append(nb::make_tuple(step.name, kind, nb::tuple(nb::cast(step.shape)), values));
  }
  return list;
}

// The kinds of terms that a position has.
std::vector<std::string> kinds_of(Text text) {
  std::vector<std::string> kinds;
  for (const Part& part : parse_position(text).parts) {
    const std::vector<std::string> own = term_kinds(part);
    kinds.insert(kinds.end(), own.begin(), own.end());
  }
  return kinds;
}

// Of each tensor of a position: its name, where it is an input the names of its axes (else nothing),
// and whether it is read as its sums along the last.
nb::list list_tensors(Text text) {
  nb::list list;
  for (const Part& part : parse_position(text).parts) {
    for (const ParameterSpec& spec : part.specs()) {
      nb::list axes;
      for (const int64_t size : spec.shape) {
        if (!spec.input) break;
        const char* name = size_name(size);
        axes.append(name == nullptr ? "" : name);
      }
      list.append(
          nb::make_tuple(part.scheme().name + "." + spec.name, nb::tuple(axes), spec.cumulative));
    }
  }
  return list;
}

// Writes where a position places queries or keys over their numbers, int64 [n], contiguous. Where it
// places none they stay.
void place_tokens_of(Text text, bool keys, nb::handle tokens) {
  const TensorView view = to_view(tokens, "tokens");
  auto* numbers = static_cast<int64_t*>(view.data);
  std::vector<int64_t> places(numbers, numbers + view.numel());
  place_tokens(parse_position(text), keys ? Side::kKey : Side::kQuery, places);
  std::copy(places.begin(), places.end(), numbers);
}

void bind_rotations(nb::module_& module) {
  module.def("rotary_tables",
             [](Text text, int64_t offset, nb::handle parameters, nb::handle cos, nb::handle sin) {
               const Part part = to_part(text, parameters);
               const TensorView c = to_view(cos, "cos"), s = to_view(sin, "sin");
               Signals signals;
               const int64_t length = c.shape[static_cast<size_t>(c.rank - 2)];
               signals.run([&] { rotary_tables(part, length, offset, c, s, signals.token()); });
             });
  module.def("rotary_tables_backward", [](Text text, int64_t offset, nb::handle parameters,
                                          nb::handle dcos, nb::handle dsin, nb::handle gradients) {
    const Part part = to_part(text, parameters);
    const TensorView c = to_view(dcos, "dcos"), s = to_view(dsin, "dsin");
    const std::vector<TensorView> wanted = to_views(gradients, "gradients");
    Signals signals;
    signals.run([&] { rotary_tables_backward(part, offset, c, s, wanted, signals.token()); });
  });
  module.def(
      "rotate",
      [](nb::handle x, Text text, int64_t offset, nb::handle positions, bool inverse,
         nb::handle parameters, nb::handle out) {
        const Part part = to_part(text, parameters);
        const TensorView in = to_view(x, "x"), at = to_view(positions, "positions"),
                         o = to_view(out, "out");
        Signals signals;
        signals.run([&] { rotate(part, in, offset, at, inverse, o, signals.token()); });
      },
      nb::arg(), nb::arg(), nb::arg(), nb::arg().none(), nb::arg(), nb::arg(), nb::arg());
  module.def(
      "rotate_backward",
      [](nb::handle x, Text text, int64_t offset, nb::handle positions, bool inverse,
         nb::handle parameters, nb::handle dout, nb::handle gradients) {
        const Part part = to_part(text, parameters);
        const TensorView in = to_view(x, "x"), at = to_view(positions, "positions"),
                         d = to_view(dout, "dout");
        const std::vector<TensorView> wanted = to_views(gradients, "gradients");
        Signals signals;
        signals.run(
            [&] { rotate_backward(part, in, offset, at, inverse, d, wanted, signals.token()); });
      },
      nb::arg(), nb::arg(), nb::arg(), nb::arg().none(), nb::arg(), nb::arg(), nb::arg(),
      nb::arg());
}

void bind_positions(nb::module_& module) {
  module.def("stays_apart",
             [](Text text, bool placed) { return stays_apart(parse_position(text), placed); });
  module.def("term_kinds", &kinds_of);
  module.def("list_tensors", &list_tensors);
  module.def("place_tokens", &place_tokens_of);
  module.def("steps", &list_steps, nb::arg(), nb::arg(), nb::arg(), nb::arg().none(), nb::arg());
  module.def("dense_shape", [](Text text, int64_t queries, int64_t keys, int64_t q_offset,
                               Text which, const std::vector<std::vector<int64_t>>& shapes) {
    return dense_shape(to_part(text, shapes), {queries, keys, q_offset}, which);
  });
  module.def("dense", [](Text text, int64_t queries, int64_t keys, int64_t q_offset, Text which,
                         nb::handle parameters, nb::handle out) {
    const Part part = to_part(text, parameters);
    const TensorView o = to_view(out, "out");
    Signals signals;
    signals.run([&] { dense(part, {queries, keys, q_offset}, which, o, signals.token()); });
  });
  module.def("dense_backward",
             [](Text text, int64_t queries, int64_t keys, int64_t q_offset, Text which,
                nb::handle parameters, nb::handle dout, nb::handle gradients) {
               const Part part = to_part(text, parameters);
               const TensorView d = to_view(dout, "dout");
               const std::vector<TensorView> wanted = to_views(gradients, "gradients");
               Signals signals;
               signals.run([&] {
                 dense_backward(part, {queries, keys, q_offset}, which, d, wanted, signals.token());
               });
             });
  module.def("indices", [](Text text, int64_t queries, int64_t keys, int64_t q_offset,
                           nb::handle parameters, nb::handle out) {
    const Part part = to_part(text, parameters);
    const TensorView o = to_view(out, "out");
    Signals signals;
    signals.run([&] { indices(part, {queries, keys, q_offset}, o, signals.token()); });
  });
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
  namespace nb = nanobind;
  nb::register_exception_translator([](const std::exception_ptr& pointer, void*) {
    const relpos::Error error = relpos::as_error(pointer);
    PyObject* kind = error.kind() == ErrorKind::kType        ? PyExc_TypeError
                     : error.kind() == ErrorKind::kIo        ? PyExc_OSError
                     : error.kind() == ErrorKind::kCancelled ? PyExc_KeyboardInterrupt
                     : error.kind() == ErrorKind::kMemory    ? PyExc_MemoryError
                                                             : PyExc_ValueError;
    PyErr_SetString(kind, error.what());
  });
  module.attr("__version__") = RELPOS_VERSION;
  module.def("use_torch", &relpos::use_torch, nb::arg().none(), nb::arg(), nb::arg(), nb::arg());
  module.attr("NOBODY") = static_cast<int>(relpos::kNobody);
  module.attr("AUTOGRAD") = static_cast<int>(relpos::kAutograd);
  module.attr("OTHERS") = static_cast<int>(relpos::kOthers);
  module.def(
      "seen_by",
      [](nb::handle query, nb::handle key, nb::handle value, const nb::tuple& options) {
        return static_cast<int>(relpos::seen_by(query, key, value, options));
      },
      nb::arg().none(), nb::arg().none(), nb::arg().none(), nb::arg());
  relpos::bind_memory(module);
  relpos::bind_kept(module);
  relpos::bind_attention(module);
  relpos::bind_jax(module);
  relpos::bind_schemes(module);
  relpos::bind_positions(module);
  relpos::bind_rotations(module);
  module.def("show_config", [] {
    nb::dict config;
    for (const auto& [name, value] : relpos::show_config()) config[name.c_str()] = value;
    return config;
  });
}
