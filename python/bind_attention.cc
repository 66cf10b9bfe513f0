// Attention and scores, forward and backward.
#include <utility>
#include <vector>

#include "arguments.h"
#include "base/parallel.h"

namespace relpos {
namespace {

// One call's options and position, read from a relpos._call.call.Call. No value below is None.
struct Bound {
  // Options are read by `of_options`, parameters by `read`.
  explicit Bound(const nb::tuple& call, ReadTensor read = memory_of,
                 ReadTensor of_options = memory_of);
  Bound(const Bound&) = delete;
  Bound& operator=(const Bound&) = delete;

  // Deals a flat list of gradients, None where not wanted, to the parts.
  std::vector<std::vector<TensorView>> deal(const std::vector<TensorView>& gradients,
                                            size_t first) const {
    std::vector<std::vector<TensorView>> dealt;
    for (const Part& part : position.parts) {
      dealt.emplace_back();
      for (size_t n = 0; n < part.parameters.size(); ++n) {
        dealt.back().push_back(gradients.at(first++));
      }
    }
    return dealt;
  }

  Signals signals;
  Options options;
  std::string text;
  nb::object parameters = nb::tuple();
  Position position;
};

// What a field is read as: the position's text, its parameters, or an option of the call.
struct Reader {
  enum class Kind { kPosition, kParameters, kOption } kind;
  const CallOption* option = nullptr;

  void operator()(nb::handle value, ReadTensor read, Bound& to) const {
    if (kind == Kind::kPosition) {
      to.text = nb::cast<std::string>(value);
    } else if (kind == Kind::kParameters) {
      to.parameters = nb::borrow(value);
    } else {
      option->set(to.options, to_argument(value, read));
    }
  }

  CallArgument to_argument(nb::handle value, ReadTensor read) const {
    switch (option->kind) {
      case CallOption::Kind::kBool:
        return nb::cast<bool>(value);
      case CallOption::Kind::kInt:
        return nb::cast<int64_t>(value);
      case CallOption::Kind::kReal:
        return nb::cast<double>(value);
      case CallOption::Kind::kPair:
        return nb::cast<std::pair<int64_t, int64_t>>(value);
      case CallOption::Kind::kTensor:
        break;
    }
    return to_view(value, option->given_as.data(), read);
  }
};

// The readers in the order of the fields of relpos._call.call.Call.
std::vector<Reader>& readers() {
  static std::vector<Reader> ordered;
  return ordered;
}

void read_fields(const std::vector<std::string>& names) {
  readers().clear();
  for (const std::string& name : names) {
    const CallOption* option = find_call_option(name);
    const bool position = name == "position", parameters = name == "parameters";
    check_value(option != nullptr || position || parameters, "Call: nothing here reads its field ",
                name);
    readers().push_back({position     ? Reader::Kind::kPosition
                         : parameters ? Reader::Kind::kParameters
                                      : Reader::Kind::kOption,
                         option});
  }
  const size_t expected = call_options().size() + 2;
  check_value(names.size() == expected, "Call: expected ", expected, " fields, got ", names.size());
}

Bound::Bound(const nb::tuple& call, ReadTensor read, ReadTensor of_options) {
  check_value(call.size() == readers().size(), "call: expected relpos._call.call.Call");
  size_t n = 0;
  for (nb::handle value : call) {
    const Reader& reader = readers()[n++];
    if (!value.is_none()) reader(value, of_options, *this);
  }
  options.cancel = signals.token();
  options.path = forced_path();
  position = to_position(text, parameters, read);
}

nb::object lowered(const LoweredNumbers& numbers) {
  if (numbers.parameter < 0) return nb::none();
  return nb::make_tuple(numbers.parameter, numbers.axes, numbers.chosen, numbers.multiplier);
}

nb::object lowered(const std::monostate&) { return nb::none(); }

nb::object lowered(const LoweredMap& map) { return nb::make_tuple(map.starts, map.classes); }

nb::object lowered(const LoweredCoordinates& along) {
  return nb::make_tuple("coordinates", lowered(along.of_queries), lowered(along.of_keys),
                        along.axis, along.q, along.k);
}

nb::object lowered(const LoweredClasses& of) {
  return nb::make_tuple("classes", of.parameter, of.hidden);
}

nb::object lowered(const LoweredDistance& delta) {
  return std::visit([](const auto& each) { return lowered(each); }, delta);
}

nb::object lowered(const LoweredBias& bias) {
  return nb::make_tuple(lowered(bias.map), lowered(bias.table), lowered(bias.delta));
}

nb::object lowered(const LoweredComputedTable& table) {
  return nb::make_tuple(lowered(table.map), table.heads, table.first, table.last);
}

nb::object lowered(const LoweredSlopes& slopes) {
  return nb::make_tuple(lowered(slopes.past), lowered(slopes.future));
}

nb::object lowered(const LoweredKeyBias& bias) {
  return nb::make_tuple(lowered(bias.values), bias.cumulative);
}

nb::object lowered(const LoweredRows& rows) {
  return nb::make_tuple(lowered(rows.map), lowered(rows.table), lowered(rows.factor),
                        lowered(rows.added), rows.scale, lowered(rows.delta), rows.width,
                        nb::bytes(rows.features.data(), rows.features.size() * sizeof(double)));
}

nb::object lowered(const LoweredTurn& turn) {
  nb::list numbers;
  for (const LoweredNumbers& each : turn.numbers) numbers.append(lowered(each));
  return nb::make_tuple(turn.start, turn.dims, turn.interleaved, turn.magnitude,
                        turn.float32_angles, turn.axes, turn.frequency, turn.by, nb::tuple(numbers),
                        turn.q, turn.k);
}

TensorView memory_of_integers(nb::handle tensor) {
  const TensorView shape = shape_of(tensor);
  return shape.dtype == DType::kInt64 ? memory_of(tensor) : shape;
}

// (scale, whether tokens are consecutive, whether the terms hold at the positions, and for the inputs of
// integers, that were read alone, terms) of a call of which shapes, dtypes and plain options alone are read,
// and with `reads` tensors of options and inputs of integers, which lie on the CPU. A term is (scheme, kind,
// what), with the members of lower.h in their order; numbers that are not given are None, and so is what kernels
// are not told.
nb::tuple lower_call(nb::handle query, nb::handle key, nb::handle value, const nb::tuple& options,
                     bool reads) {
  const Bound call(options, reads ? memory_of_integers : shape_of, reads ? memory_of : shape_of);
  const LoweredCall found = lower(to_view(query, "query", shape_of), to_view(key, "key", shape_of),
                                  to_view(value, "value", shape_of), call.position, call.options);
  nb::list terms;
  for (const LoweredTerm& term : found.terms) {
    nb::object what = std::visit([](const auto& each) { return lowered(each); }, term.what);
    terms.append(nb::make_tuple(term.scheme, term.kind, std::move(what)));
  }
  return nb::make_tuple(found.scale, found.consecutive, found.reads_positions, found.reads_inputs,
                        nb::tuple(terms));
}

// computed_tables of lower.h, of a call whose tensors lie on the CPU but for query, key and value.
nb::list computed_tables_of(nb::handle query, nb::handle key, nb::handle value,
                            const nb::tuple& options) {
  const Bound call(options);
  nb::list found;
  for (const std::vector<double>& table :
       computed_tables(to_view(query, "query", shape_of), to_view(key, "key", shape_of),
                       to_view(value, "value", shape_of), call.position, call.options)) {
    found.append(nb::bytes(table.data(), table.size() * sizeof(double)));
  }
  return found;
}

// computed_tables_backward of lower.h, from float64 tables on the CPU to the gradients of the parameters.
void pull_back_tables(nb::handle query, nb::handle key, nb::handle value, const nb::tuple& options,
                      nb::handle tables, nb::handle gradients) {
  const Bound call(options);
  std::vector<std::vector<double>> given;
  for (const TensorView& table : to_views(tables, "tables")) {
    std::vector<double>& numbers = given.emplace_back();
    for (int64_t n = 0; n < table.numel(); ++n) numbers.push_back(table.at({n}));
  }
  computed_tables_backward(to_view(query, "query", shape_of), to_view(key, "key", shape_of),
                           to_view(value, "value", shape_of), call.position, call.options, given,
                           call.deal(to_views(gradients, "gradients"), 0));
}

// Throws where no call with these heads (one batch row, query and key) would take the position.
void check_fits(const std::string& text, int64_t heads, int64_t kv_heads, int64_t head_dim) {
  Position position = parse_position(text);
  for (size_t p = 0; p < position.parts.size(); ++p) {
    for (const ParameterSpec& spec : position.parts[p].specs()) {
      const std::vector<int64_t> shape =
          InputSizes{.heads = heads, .head_dim = head_dim}.example(spec);
      position.parts[p].parameters.push_back(
          spec.integers() ? TensorView(nullptr, spec.integer, shape) : blank_view(shape));
    }
  }
  const TensorView query = blank_view({1, heads, 1, head_dim});
  const TensorView key = blank_view({1, kv_heads, 1, head_dim});
  Options options;
  options.enable_gqa = true;
  workspace_bytes(query, key, key, position, options, false);
}

// attention() into new tensors of PyTorch: (out, lse, softmax), None for what is not wanted. For calls
// that others do not see (seen_by).
nb::tuple attend(nb::handle query, nb::handle key, nb::handle value, const nb::tuple& options,
                 bool want_lse, bool want_softmax) {
  Bound call(options);
  const TensorView q = to_view(query, "query"), k = to_view(key, "key"),
                   v = to_view(value, "value");
  const DType wide = q.dtype == DType::kFloat64 ? DType::kFloat64 : DType::kFloat32;
  const auto made = [&](bool wanted, DType dtype, std::vector<int64_t> shape) {
    return wanted ? new_tensor(shape, dtype) : NewTensor{nb::none(), {}};
  };
  const int64_t B = q.shape[0], H = q.shape[1], Lq = q.shape[2];
  const NewTensor out = made(true, q.dtype, {B, H, Lq, v.shape[3]});
  const NewTensor lse = made(want_lse, wide, {B, H, Lq});
  const NewTensor softmax = made(want_softmax, wide, {B, H, Lq, 2});
  call.signals.run(
      [&] { attention(q, k, v, call.position, call.options, out.view, lse.view, softmax.view); });
  return nb::make_tuple(out.tensor, lse.tensor, softmax.tensor);
}

// query, key, value, out, softmax, dout and dlse.
std::vector<TensorView> backward_views(nb::handle tensors) {
  return to_views(tensors, {"query", "key", "value", "out", "softmax", "dout", "dlse"});
}

// attention_backward() of these, into the gradients of query, key, value, attn_mask and the parameters; one
// that is not given is not computed.
void run_backward(Bound& call, const std::vector<TensorView>& t,
                  const std::vector<TensorView>& gradients) {
  const Gradients wanted{gradients.at(0), gradients.at(1), gradients.at(2), call.deal(gradients, 4),
                         gradients.at(3)};
  call.signals.run([&] {
    attention_backward(t.at(0), t.at(1), t.at(2), t.at(3), t.at(4), t.at(5), t.at(6), call.position,
                       call.options, wanted);
  });
}

// The same into new tensors of PyTorch, None for what does not need one.
nb::list attend_backward(nb::handle tensors, const nb::list& needs, const nb::tuple& options) {
  Bound call(options);
  const std::vector<TensorView> t = backward_views(tensors);
  std::vector<TensorView> of{t.at(0), t.at(1), t.at(2), call.options.attn_mask};
  for (const Part& part : call.position.parts) {
    of.insert(of.end(), part.parameters.begin(), part.parameters.end());
  }
  check_value(needs.size() == of.size(), "needs: expected ", of.size(), ", got ", needs.size());
  nb::list results;
  std::vector<TensorView> gradients(of.size());
  for (size_t n = 0; n < of.size(); ++n) {
    NewTensor made{nb::none(), {}};
    if (nb::cast<bool>(needs[n])) made = new_tensor(of[n].dims(), of[n].dtype);
    gradients[n] = made.view;
    results.append(made.tensor);
  }
  run_backward(call, t, gradients);
  return results;
}

// What tests, benches and users ask about a call.
void bind_tools(nb::module_& module) {
  module.def("workspace_bytes", [](nb::handle query, nb::handle key, nb::handle value,
                                   const nb::tuple& options, bool backward) {
    const Bound call(options);
    return workspace_bytes(to_view(query, "query"), to_view(key, "key"), to_view(value, "value"),
                           call.position, call.options, backward);
  });
  module.def("teams_run", &detail::teams_run);
  // For tests and benches: "auto", "fused" or "reference", for every later call of the process.
  module.def("force_path", [](const std::string& path) {
    check_value(path == "auto" || path == "fused" || path == "reference",
                "path: expected auto, fused or reference, got ", path);
    forced_path() = path == "fused"       ? Path::kFused
                    : path == "reference" ? Path::kReference
                                          : Path::kAuto;
  });
}

}  // namespace

void bind_attention(nb::module_& module) {
  module.def("read_fields", &read_fields);
  module.def("check_fits", &check_fits);
  // Their value may be None: weights and scores have none.
  module.def("lower", &lower_call, nb::arg(), nb::arg(), nb::arg().none(), nb::arg(), nb::arg());
  module.def("computed_tables", &computed_tables_of, nb::arg(), nb::arg(), nb::arg().none(),
             nb::arg());
  module.def("computed_tables_backward", &pull_back_tables, nb::arg(), nb::arg(), nb::arg().none(),
             nb::arg(), nb::arg(), nb::arg());
  module.def(
      "attention",
      [](nb::handle query, nb::handle key, nb::handle value, const nb::tuple& options,
         nb::handle out, nb::handle lse, nb::handle softmax) {
        Bound call(options);
        const TensorView q = to_view(query, "query"), k = to_view(key, "key"),
                         v = to_view(value, "value");
        const TensorView o = to_view(out, "out"), l = to_view(lse, "lse"),
                         s = to_view(softmax, "softmax");
        call.signals.run([&] { attention(q, k, v, call.position, call.options, o, l, s); });
      },
      nb::arg("query"), nb::arg("key"), nb::arg("value"), nb::arg("call"), nb::arg("out"),
      nb::arg("lse").none(), nb::arg("softmax").none());
  module.def("attend", &attend);
  module.def("attend_backward", &attend_backward);
  module.def("attention_backward",
             [](nb::handle tensors, const nb::tuple& options, nb::handle gradients) {
               Bound call(options);
               run_backward(call, backward_views(tensors), to_views(gradients, "gradients"));
             });
  module.def("attention_weights", [](nb::handle query, nb::handle key, nb::handle softmax,
                                     const nb::tuple& options, nb::handle weights) {
    Bound call(options);
    const TensorView q = to_view(query, "query"), k = to_view(key, "key");
    const TensorView s = to_view(softmax, "softmax"), w = to_view(weights, "weights");
    call.signals.run([&] { attention_weights(q, k, s, call.position, call.options, w); });
  });
  module.def("scores", [](nb::handle query, nb::handle key, const nb::tuple& options,
                          nb::handle out) {
    Bound call(options);
    const TensorView q = to_view(query, "query"), k = to_view(key, "key"), o = to_view(out, "out");
    call.signals.run([&] { scores(q, k, call.position, call.options, o); });
  });
  // tensors: query, key, dscores; gradients: of query, key, attn_mask and the parameters.
  module.def("scores_backward",
             [](nb::handle tensors, const nb::tuple& options, nb::handle gradients) {
               Bound call(options);
               const std::vector<TensorView> g = to_views(gradients, "gradients");
               const std::vector<TensorView> t = to_views(tensors, {"query", "key", "dscores"});
               const Gradients wanted{g.at(0), g.at(1), {}, call.deal(g, 3), g.at(2)};
               call.signals.run([&] {
                 scores_backward(t.at(0), t.at(1), t.at(2), call.position, call.options, wanted);
               });
             });
  bind_tools(module);
}

}  // namespace relpos
