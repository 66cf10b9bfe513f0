// Attention and scores, forward and backward.
#include <optional>
#include <utility>

#include "arguments.h"

namespace relpos {
namespace {

Path& forced_path() {
  static Path path = Path::kAuto;
  return path;
}

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

}  // namespace

void bind_attention(nb::module_& module) {
  module.def(
      "attention",
      [](nb::handle query, nb::handle key, nb::handle value, const nb::tuple& options,
         nb::handle parameters, nb::handle out, nb::handle lse, nb::handle softmax) {
        Call call(options, parameters);
        const TensorView q = to_view(query), k = to_view(key), v = to_view(value);
        const TensorView o = to_view(out), l = to_view(lse), s = to_view(softmax);
        call.signals.run([&] { attention(q, k, v, call.position, call.options, o, l, s); });
      },
      nb::arg("query"), nb::arg("key"), nb::arg("value"), nb::arg("options"), nb::arg("parameters"),
      nb::arg("out"), nb::arg("lse").none(), nb::arg("softmax").none());
  // tensors: query, key, value, out, softmax, dout, dlse; gradients: query, key, value, attn_mask.
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
      "attention_weights", [](nb::handle query, nb::handle key, nb::handle softmax,
                              const nb::tuple& options, nb::handle parameters, nb::handle weights) {
        Call call(options, parameters);
        const TensorView q = to_view(query), k = to_view(key);
        const TensorView s = to_view(softmax), w = to_view(weights);
        call.signals.run([&] { attention_weights(q, k, s, call.position, call.options, w); });
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
  // For tests and benches: "auto", "fused" or "reference", for every later call of the process.
  module.def("force_path", [](const std::string& path) {
    check_value(path == "auto" || path == "fused" || path == "reference",
                "path: expected auto, fused or reference, got ", path);
    forced_path() = path == "fused"       ? Path::kFused
                    : path == "reference" ? Path::kReference
                                          : Path::kAuto;
  });
}

}  // namespace relpos
