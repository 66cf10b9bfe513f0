// relpos attend: attention and its gradients on files.
#include <algorithm>
#include <chrono>
#include <deque>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cli/commands/commands.h"
#include "cli/common.h"
#include "cli/files/files.h"
#include "cli/files/outputs.h"
#include "cli/files/signals.h"
#include "cli/options/help.h"
#include "cli/options/parameters.h"
#include "relpos/attention.h"

namespace relpos::cli {
namespace {

using Json = nlohmann::ordered_json;

struct AttendArguments {
  std::string query, key, value, position, params, out, lse, backward, grads;
  std::vector<std::string> inputs;
  std::string mask, padding, q_offset, k_offset, q_positions, k_positions, key_lo, key_hi;
  std::string window, path = "auto";
  std::optional<double> scale, softcap;
  double dropout = 0.0;
  uint64_t seed = 0;
  int threads = 0;
  bool causal = false, float32_products = false, enable_gqa = false, json = false, quiet = false;
};

// Leading axes of size 1 up to `rank`.
TensorView with_rank(const TensorView& view, int rank) {
  const auto more = static_cast<size_t>(rank - view.rank);
  std::vector<int64_t> shape = view.dims();
  std::vector<int64_t> strides(view.strides.begin(), view.strides.begin() + view.rank);
  shape.insert(shape.begin(), more, 1);
  strides.insert(strides.begin(), more, 0);
  return {view.data, view.dtype, std::move(shape), std::move(strides)};
}

// An input with heads: as it was read, and with rank 4.
struct Heads {
  Tensor tensor;
  TensorView view;

  Heads() = default;
  Heads(const std::string& path, const char* name) : tensor(read_tensor(path)) {
    const int rank = tensor.view().rank;
    check_value(rank >= 2 && rank <= 4, name, ": ", path,
                ": expected rank 4 [B, H, L, D] (or 3, or 2), got shape ",
                tensor.view().shape_text());
    view = with_rank(tensor.view(), 4);
  }
};

// `shape` without the leading axes that an input of rank `rank` did not have.
std::vector<int64_t> trimmed(const std::vector<int64_t>& shape, int rank) {
  return {shape.begin() + (4 - rank), shape.end()};
}

// The options view what is added to `tensors`.
Options make_call_options(const AttendArguments& a, std::deque<Tensor>& tensors) {
  const auto read = [&](const std::string& path) -> TensorView {
    return path.empty() ? TensorView{} : tensors.emplace_back(read_tensor(path)).view();
  };
  const auto offset = [&](const std::string& text, const char* flag) {
    return is_npy(text) ? Offset(read(text)) : Offset(parse_as<int64_t>(text, flag));
  };
  Options options;
  options.is_causal = a.causal;
  options.enable_gqa = a.enable_gqa;
  options.scale = a.scale;
  options.softcap = a.softcap;
  options.float32_products = a.float32_products;
  options.dropout_p = a.dropout;
  options.seed = a.seed;
  options.threads = a.threads;
  options.path = a.path == "auto"    ? Path::kAuto
                 : a.path == "fused" ? Path::kFused
                                     : Path::kReference;
  if (!a.window.empty()) {
    const std::vector<std::string> sides = split(a.window, ',');
    check_value(sides.size() == 2, "--window: expected LEFT,RIGHT, got ", a.window);
    options.window = {parse_as<int64_t>(sides[0], "--window"),
                      parse_as<int64_t>(sides[1], "--window")};
  }
  if (!a.q_offset.empty()) options.q_offset = offset(a.q_offset, "--q-offset");
  if (!a.k_offset.empty()) options.k_offset = offset(a.k_offset, "--k-offset");
  options.attn_mask = read(a.mask);
  options.key_padding_mask = read(a.padding);
  if (options.key_padding_mask.rank == 1) {
    options.key_padding_mask = with_rank(options.key_padding_mask, 2);
  }
  options.q_positions = read(a.q_positions);
  options.k_positions = read(a.k_positions);
  options.key_lo = read(a.key_lo);
  options.key_hi = read(a.key_hi);
  return options;
}

Position make_position(const std::string& text, const TensorView& query) {
  if (text.empty()) return {};
  return parse_position(text, {{"heads", query.shape[1]}, {"head_dim", query.shape[3]}});
}

std::string gradient_path(const std::string& folder, const std::string& name, DType dtype) {
  return (std::filesystem::path(folder) / name).string() +
         (dtype == DType::kBFloat16 ? ".safetensors" : ".npy");
}

void check_streams(const AttendArguments& a) {
  std::vector<std::pair<std::string, std::string>> files{{"--query", a.query},
                                                         {"--key", a.key},
                                                         {"--value", a.value},
                                                         {"--params", a.params},
                                                         {"--backward", a.backward},
                                                         {"--mask", a.mask},
                                                         {"--key-padding-mask", a.padding},
                                                         {"--q-offset", a.q_offset},
                                                         {"--k-offset", a.k_offset},
                                                         {"--q-positions", a.q_positions},
                                                         {"--k-positions", a.k_positions},
                                                         {"--key-lo", a.key_lo},
                                                         {"--key-hi", a.key_hi}};
  for (const std::string& input : a.inputs) {
    const size_t at = std::min(input.find('='), input.size());
    files.emplace_back("--input " + input.substr(0, at),
                       input.substr(std::min(at + 1, input.size())));
  }
  std::string first;
  for (const auto& [flag, path] : files) {
    if (path != "-") continue;
    check_value(first.empty(), flag, ": standard input is read by ", first,
                " already: give a file name for one of the two");
    first = flag;
  }
  check_value(a.grads != "-", "--grads: expected a folder, got -");
}

// The inputs and options of one call of attend.
struct Inputs {
  explicit Inputs(const AttendArguments& a)
      : options(make_call_options(a, tensors)),
        query(a.query, "query"),
        key(a.key, "key"),
        value(a.value, "value"),
        position(make_position(a.position, query.view)),
        parameters(position, a.params, a.seed, lse_dtype(),
                   {query.view.shape[0], query.view.shape[1], query.view.shape[2],
                    key.view.shape[2], query.view.shape[3]},
                   a.inputs) {
    for (const Parameter& item : parameters.items()) {
      check_value(!item.spec.input || item.from_file, "--input: ", item.name,
                  " is missing: ", item.spec.doc, "; give --input ", item.name, "=FILE.npy");
    }
    if (!a.backward.empty()) dout = Heads(a.backward, "backward");
  }

  DType dtype() const { return query.view.dtype; }
  DType lse_dtype() const { return dtype() == DType::kFloat64 ? DType::kFloat64 : DType::kFloat32; }
  std::string position_name() const {
    return position.parts.empty() ? "none" : position_text(position);
  }

  std::deque<Tensor> tensors;  // that options views
  Options options;
  Heads query, key, value, dout;
  Position position;
  Parameters parameters;
};

// `paths`: of each gradient, by its name.
Gradients add_gradients(const AttendArguments& a, const Inputs& in, Outputs& outputs, Json& paths) {
  Gradients views;
  const auto add = [&](const std::string& name, const TensorView& of) {
    const std::string path = gradient_path(a.grads, name, of.dtype);
    paths[name] = path;
    return outputs.add(path, of.dtype, of.dims());
  };
  views.query = with_rank(add("dq", in.query.tensor.view()), 4);
  views.key = with_rank(add("dk", in.key.tensor.view()), 4);
  views.value = with_rank(add("dv", in.value.tensor.view()), 4);
  const TensorView& mask = in.options.attn_mask;
  if (mask.given() && is_floating(mask.dtype)) views.attn_mask = add("dmask", mask);
  views.parameters = in.parameters.gradients(
      [&](const Parameter& item) { return add(item.name, item.tensor.view()); });
  return views;
}

// Fills the outputs; returns the seconds that it took.
double compute(const AttendArguments& a, Inputs& in, Outputs& outputs, Json& gradient_paths) {
  in.options.cancel = &cancel_on_interrupt();
  if (!a.grads.empty()) outputs.add_folder(a.grads);
  const TensorView &query = in.query.view, &value = in.value.view;
  const int rank = in.query.tensor.view().rank;
  std::vector<int64_t> shape = query.dims();
  shape.back() = value.shape[3];
  const TensorView out = with_rank(outputs.add(a.out, in.dtype(), trimmed(shape, rank)), 4);
  shape.pop_back();
  const Tensor unwritten(in.lse_dtype(), a.lse.empty() ? shape : std::vector<int64_t>{0});
  const TensorView lse =
      a.lse.empty() ? unwritten.view()
                    : with_rank(outputs.add(a.lse, in.lse_dtype(), trimmed(shape, rank)), 3);
  Gradients gradients;
  if (!a.grads.empty()) gradients = add_gradients(a, in, outputs, gradient_paths);

  const auto start = std::chrono::steady_clock::now();
  attention(query, in.key.view, value, in.position, in.options, out, lse);
  if (!a.grads.empty()) {
    attention_backward(query, in.key.view, value, out, lse, in.dout.view, {}, in.position,
                       in.options, gradients);
  }
  throw_if_interrupted();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

Json report_json(const AttendArguments& a, const Inputs& in, const Json& gradient_paths,
                 double seconds) {
  Json parameters = Json::array();
  for (const Parameter& item : in.parameters.items()) {
    parameters.push_back({{"name", item.name},
                          {"shape", item.tensor.view().dims()},
                          {"dtype", dtype_name(item.tensor.view().dtype)},
                          {"trainable", item.spec.trainable},
                          {"from", item.from_file ? "file" : "init"}});
  }
  return {{"position", in.position_name()},
          {"query", in.query.view.dims()},
          {"key", in.key.view.dims()},
          {"value", in.value.view.dims()},
          {"dtype", dtype_name(in.dtype())},
          {"path", a.path},
          {"seconds", seconds},
          {"out", a.out},
          {"lse", a.lse.empty() ? Json(nullptr) : Json(a.lse)},
          {"gradients", gradient_paths},
          {"parameters", parameters},
          {"drawn_at_random", in.parameters.drawn_at_random()}};
}

std::string report_text(const AttendArguments& a, const Inputs& in, double seconds) {
  return "attend: query " + in.query.view.shape_text() + ", key " + in.key.view.shape_text() +
         ", value " + in.value.view.shape_text() + ", " + dtype_name(in.dtype()) + ", position " +
         in.position_name() + ", " + (a.backward.empty() ? "forward " : "forward and backward ") +
         text_of("%.1f ms", seconds * 1e3) + ", path " + a.path + ", wrote " +
         (a.out == "-" ? "standard output" : a.out);
}

int attend(const AttendArguments& a) {
  check_value(a.backward.empty() == a.grads.empty(),
              "--backward and --grads go together: the gradient of the output, and a folder");
  check_streams(a);
  Inputs in(a);
  Outputs outputs;
  Json gradient_paths = Json::object();
  const double seconds = compute(a, in, outputs, gradient_paths);
  outputs.commit();
  const std::string missing = in.parameters.missing_text();
  const std::string drawn = a.json ? "" : in.parameters.drawn_text(a.seed);
  for (const std::string& text : {missing, drawn}) {
    if (!text.empty() && !a.quiet) note("relpos attend: " + text);
  }
  if (a.json) {
    const Json report = report_json(a, in, gradient_paths, seconds);
    outputs.uses_stdout() ? note(json_text(report)) : print_json(report);
  } else if (!a.quiet) {
    note(report_text(a, in, seconds));
  }
  return kOk;
}

CLI::Option* add_text(CLI::App& app, const char* flag, std::string& text, const char* doc,
                      const char* type = "FILE") {
  return app.add_option(flag, text, doc)->type_name(type);
}

// Adds options for the positions of tokens, and for the keys that a query sees.
void add_visibility(CLI::App& app, AttendArguments& a) {
  app.add_flag("--causal", a.causal, "a query sees only keys with pos_k <= pos_q");
  add_text(app, "--window", a.window,
           "a query sees keys with -L <= pos_k - pos_q <= R; -1 means no bound", "L,R");
  add_text(app, "--q-offset", a.q_offset, "position of query 0, or a file of int64 [B]", "N|FILE");
  add_text(app, "--k-offset", a.k_offset, "position of key 0, or a file of int64 [B] [0]",
           "N|FILE");
  add_text(app, "--q-positions", a.q_positions, "positions of the queries, int64 [Lq] or [B, Lq]");
  add_text(app, "--k-positions", a.k_positions, "positions of the keys, int64 [Lk] or [B, Lk]");
  add_text(app, "--key-lo", a.key_lo, "first key of each query, int64");
  add_text(app, "--key-hi", a.key_hi, "one past the last key of each query, int64");
  add_text(app, "--mask", a.mask, "bool (true: attend), or numbers to add to the scores");
  add_text(app, "--key-padding-mask", a.padding, "bool [B, Lk], true: padding");
}

}  // namespace

void add_attend(CLI::App& tool, Run& run) {
  CLI::App* app = tool.add_subcommand("attend", "Attention, and its gradients, on files");
  app->footer(
      "  relpos attend --query q.npy --key k.npy --value v.npy --out o.npy\n"
      "  relpos attend --query q.npy --key k.npy --value v.npy \\\n"
      "    --position 'rope(layout=half)+t5(buckets=32)' --params p.safetensors --causal --out "
      "o.npy\n"
      "  relpos attend --query q.npy --key k.npy --value v.npy --position "
      "'alibi(slopes=geometric)' "
      "\\\n    --causal --q-offset 96 --out o.npy --lse l.npy --backward dout.npy --grads grads\n\n"
      "Arrays are [B, H, L, D], [H, L, D] or [L, D], in .npy or .safetensors; - is .npy on "
      "standard\n"
      "input or output. heads and head_dim of the schemes come from the query. Parameters have\n"
      "their dotted names, or PART.name where two parts have the same name; --params also accepts\n"
      "parts.PART.name. Gradients are written as dq, dk, dv and under these names. A command\n"
      "replaces all of its files or none.");
  AttendArguments& a = add_arguments(*app, run, attend);
  add_text(*app, "--query", a.query, "[B, H, Lq, D]")->required();
  add_text(*app, "--key", a.key, "[B, Hk, Lk, D]")->required();
  add_text(*app, "--value", a.value, "[B, Hk, Lk, Dv]")->required();
  add_text(*app, "--position", a.position, "a scheme or a sum of schemes [none]", "TEXT");
  app->add_option("--input", a.inputs, "an input of the position, such as log_f")
      ->type_name("NAME=FILE");
  add_text(*app, "--params", a.params, "parameters of the position [random, by --seed]");
  add_text(*app, "--out", a.out, "the output, [B, H, Lq, Dv]")->required();
  add_text(*app, "--lse", a.lse, "write the log-sum-exp, [B, H, Lq]");
  add_text(*app, "--backward", a.backward, "the gradient of the output");
  add_text(*app, "--grads", a.grads, "folder for the gradients", "DIR");
  add_visibility(*app, a);
  add_number(*app, "--scale", a.scale, "multiplies the scores [1/sqrt(D)]");
  add_number(*app, "--softcap", a.softcap, "C: scores become C tanh(score / C), before --mask");
  app->add_flag("--float32-products", a.float32_products,
                "bfloat16 inputs: multiply them in float32, slower and more exact");
  app->add_flag("--enable-gqa", a.enable_gqa, "allow fewer key heads than query heads");
  add_number(*app, "--dropout", a.dropout, "probability of dropping a weight [0]");
  add_number(*app, "--seed", a.seed, "random seed of dropout and of random parameters [0]");
  add_number(*app, "--threads", a.threads, "number of threads [the runtime's default]");
  add_choice(*app, "--path", a.path, {"auto", "fused", "reference"}, "which implementation [auto]");
  app->add_flag("--quiet", a.quiet, "print no summary on stderr");
  app->add_flag("--json", a.json, "print the summary as JSON on stdout (stderr with --out -)");
}

}  // namespace relpos::cli
