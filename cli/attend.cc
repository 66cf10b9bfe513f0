// relpos attend: attention and its gradients on files.
#include <array>
#include <chrono>
#include <cstdio>
#include <deque>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "commands.h"
#include "common.h"
#include "files.h"
#include "help.h"
#include "outputs.h"
#include "parameters.h"
#include "relpos/attention.h"
#include "signals.h"

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

// The tensors that Options views.
struct OptionTensors {
  Tensor mask, padding, q_offset, k_offset, q_positions, k_positions, key_lo, key_hi;
};

// Leading axes of size 1 up to `rank`.
TensorView with_rank(const TensorView& view, int rank) {
  TensorView result = view;
  while (result.rank < rank) {
    for (auto axis = static_cast<size_t>(result.rank); axis > 0; --axis) {
      result.shape[axis] = result.shape[axis - 1];
      result.strides[axis] = result.strides[axis - 1];
    }
    result.shape[0] = 1;
    result.strides[0] = 0;
    ++result.rank;
  }
  return result;
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

Offset read_offset(const std::string& text, const char* flag, Tensor& rows) {
  if (!is_npy(text)) return parse_as<int64_t>(text, flag);
  rows = read_tensor(text);
  return Offset(rows.view());
}

void read_into(const std::string& path, Tensor& tensor, TensorView& view) {
  if (path.empty()) return;
  tensor = read_tensor(path);
  view = tensor.view();
}

Options make_call_options(const AttendArguments& a, OptionTensors& tensors) {
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
  if (!a.q_offset.empty())
    options.q_offset = read_offset(a.q_offset, "--q-offset", tensors.q_offset);
  if (!a.k_offset.empty())
    options.k_offset = read_offset(a.k_offset, "--k-offset", tensors.k_offset);
  read_into(a.mask, tensors.mask, options.attn_mask);
  read_into(a.padding, tensors.padding, options.key_padding_mask);
  if (options.key_padding_mask.rank == 1) {
    options.key_padding_mask = with_rank(options.key_padding_mask, 2);
  }
  read_into(a.q_positions, tensors.q_positions, options.q_positions);
  read_into(a.k_positions, tensors.k_positions, options.k_positions);
  read_into(a.key_lo, tensors.key_lo, options.key_lo);
  read_into(a.key_hi, tensors.key_hi, options.key_hi);
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
  const std::array<std::pair<const char*, const std::string*>, 13> inputs{
      {{"--query", &a.query},
       {"--key", &a.key},
       {"--value", &a.value},
       {"--params", &a.params},
       {"--backward", &a.backward},
       {"--mask", &a.mask},
       {"--key-padding-mask", &a.padding},
       {"--q-offset", &a.q_offset},
       {"--k-offset", &a.k_offset},
       {"--q-positions", &a.q_positions},
       {"--k-positions", &a.k_positions},
       {"--key-lo", &a.key_lo},
       {"--key-hi", &a.key_hi}}};
  const char* first = nullptr;
  for (const auto& [flag, path] : inputs) {
    if (*path != "-") continue;
    check_value(first == nullptr, flag, ": standard input is read by ", first ? first : "",
                " already: give a file name for one of the two");
    first = flag;
  }
  check_value(a.grads != "-", "--grads: expected a folder, got -");
}

// The tensors that the command writes.
class Results {
 public:
  TensorView add(const std::string& name, const std::string& path, DType dtype,
                 const std::vector<int64_t>& shape) {
    io::Sink& sink = outputs_.add_tensor(path, dtype);
    return results_.emplace_back(Result{name, path, Tensor(dtype, shape), &sink}).tensor.view();
  }
  TensorView add_gradient(const std::string& folder, const std::string& name,
                          const TensorView& of) {
    const std::string path = gradient_path(folder, name, of.dtype);
    gradients_[name] = path;
    return add(name, path, of.dtype, of.dims());
  }
  void add_folder(const std::string& path) { outputs_.add_folder(path); }
  void write() {
    for (const Result& result : results_) {
      write_tensor(*result.sink, result.path, result.tensor.view());
    }
    outputs_.commit();
  }
  const Json& gradients() const noexcept { return gradients_; }
  bool uses_stdout() const noexcept { return outputs_.uses_stdout(); }

 private:
  struct Result {
    std::string name, path;
    Tensor tensor;
    io::Sink* sink;
  };
  Outputs outputs_;
  std::deque<Result> results_;
  Json gradients_ = Json::object();
};

// What one call of attend reads.
struct Inputs {
  explicit Inputs(const AttendArguments& a)
      : options(make_call_options(a, tensors)),
        query(a.query, "query"),
        key(a.key, "key"),
        value(a.value, "value"),
        position(make_position(a.position, query.view)),
        parameters(
            position, a.params, a.seed, lse_dtype(),
            {query.view.shape[0], query.view.shape[1], query.view.shape[2], key.view.shape[2]},
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

  OptionTensors tensors;
  Options options;
  Heads query, key, value, dout;
  Position position;
  Parameters parameters;
};

Gradients add_gradients(const AttendArguments& a, const Inputs& in, Results& results) {
  Gradients views;
  const auto add = [&](const std::string& name, const TensorView& of) {
    return results.add_gradient(a.grads, name, of);
  };
  views.query = with_rank(add("dq", in.query.tensor.view()), 4);
  views.key = with_rank(add("dk", in.key.tensor.view()), 4);
  views.value = with_rank(add("dv", in.value.tensor.view()), 4);
  const TensorView& mask = in.options.attn_mask;
  if (mask.given() && is_floating(mask.dtype)) views.attn_mask = add("dmask", mask);
  for (const Part& part : in.position.parts) views.parameters.emplace_back(part.parameters.size());
  for (const Parameter& item : in.parameters.items()) {
    if (!item.spec.trainable) continue;
    views.parameters[item.part][item.index] = add(item.name, item.tensor.view());
  }
  return views;
}

// Fills the results; returns the seconds that it took.
double compute(const AttendArguments& a, Inputs& in, Results& results) {
  in.options.cancel = &cancel_on_interrupt();
  if (!a.grads.empty()) results.add_folder(a.grads);
  const TensorView &query = in.query.view, &value = in.value.view;
  const int rank = in.query.tensor.view().rank;
  const std::vector<int64_t> rows{query.shape[0], query.shape[1], query.shape[2]};
  std::vector<int64_t> shape = rows;
  shape.push_back(value.shape[3]);
  const TensorView out = with_rank(results.add("out", a.out, in.dtype(), trimmed(shape, rank)), 4);
  Tensor unwritten;
  TensorView lse;
  if (a.lse.empty()) {
    unwritten = Tensor(in.lse_dtype(), rows);
    lse = unwritten.view();
  } else {
    lse = with_rank(results.add("lse", a.lse, in.lse_dtype(), trimmed(rows, rank)), 3);
  }
  Gradients gradients;
  if (!a.grads.empty()) gradients = add_gradients(a, in, results);

  const auto start = std::chrono::steady_clock::now();
  attention(query, in.key.view, value, in.position, in.options, out, lse);
  if (!a.grads.empty()) {
    attention_backward(query, in.key.view, value, out, lse, in.dout.view, {}, in.position,
                       in.options, gradients);
  }
  throw_if_interrupted();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

Json report_json(const AttendArguments& a, const Inputs& in, const Results& results,
                 double seconds) {
  Json parameters = Json::array();
  for (const Parameter& item : in.parameters.items()) {
    parameters.push_back({{"name", item.name},
                          {"shape", item.spec.shape},
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
          {"gradients", results.gradients()},
          {"parameters", parameters},
          {"drawn_at_random", in.parameters.drawn_at_random()}};
}

std::string report_text(const AttendArguments& a, const Inputs& in, double seconds) {
  std::array<char, 64> time{};
  std::snprintf(time.data(), time.size(), "%.1f ms", seconds * 1e3);
  return "attend: query " + in.query.view.shape_text() + ", key " + in.key.view.shape_text() +
         ", value " + in.value.view.shape_text() + ", " + dtype_name(in.dtype()) + ", position " +
         in.position_name() + ", " + (a.backward.empty() ? "forward " : "forward and backward ") +
         time.data() + ", path " + a.path + ", wrote " + (a.out == "-" ? "standard output" : a.out);
}

int attend(const AttendArguments& a) {
  check_value(a.backward.empty() == a.grads.empty(),
              "--backward and --grads go together: the gradient of the output, and a folder");
  check_streams(a);
  Inputs in(a);
  Results results;
  const double seconds = compute(a, in, results);
  results.write();
  const std::string missing = in.parameters.missing_text();
  const std::string drawn = a.json ? "" : in.parameters.drawn_text(a.seed);
  for (const std::string& text : {missing, drawn}) {
    if (!text.empty() && !a.quiet) note("relpos attend: " + text);
  }
  if (a.json) {
    const Json report = report_json(a, in, results, seconds);
    results.uses_stdout() ? note(json_text(report)) : print_json(report);
  } else if (!a.quiet) {
    note(report_text(a, in, seconds));
  }
  return kOk;
}

// Where tokens stand, and which keys a query sees.
void add_visibility(CLI::App& command, AttendArguments& a) {
  command.add_flag("--causal", a.causal, "a query sees only keys with pos_k <= pos_q");
  command
      .add_option("--window", a.window,
                  "a query sees keys with -L <= pos_k - pos_q <= R; -1 means no bound")
      ->type_name("L,R");
  command.add_option("--q-offset", a.q_offset, "position of query 0, or a file of int64 [B]")
      ->type_name("N|FILE");
  command.add_option("--k-offset", a.k_offset, "position of key 0, or a file of int64 [B] [0]")
      ->type_name("N|FILE");
  command
      .add_option("--q-positions", a.q_positions, "positions of the queries, int64 [Lq] or [B, Lq]")
      ->type_name("FILE");
  command
      .add_option("--k-positions", a.k_positions, "positions of the keys, int64 [Lk] or [B, Lk]")
      ->type_name("FILE");
  command.add_option("--key-lo", a.key_lo, "first key of each query, int64")->type_name("FILE");
  command.add_option("--key-hi", a.key_hi, "one past the last key of each query, int64")
      ->type_name("FILE");
  command.add_option("--mask", a.mask, "bool (true: attend), or numbers to add to the scores")
      ->type_name("FILE");
  command.add_option("--key-padding-mask", a.padding, "bool [B, Lk], true: padding")
      ->type_name("FILE");
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
  auto arguments = std::make_shared<AttendArguments>();
  AttendArguments& a = *arguments;
  app->add_option("--query", a.query, "[B, H, Lq, D]")->type_name("FILE")->required();
  app->add_option("--key", a.key, "[B, Hk, Lk, D]")->type_name("FILE")->required();
  app->add_option("--value", a.value, "[B, Hk, Lk, Dv]")->type_name("FILE")->required();
  app->add_option("--position", a.position, "a scheme or a sum of schemes [none]")
      ->type_name("TEXT");
  app->add_option("--input", a.inputs, "an input of the position, such as log_f")
      ->type_name("NAME=FILE");
  app->add_option("--params", a.params, "parameters of the position [random, by --seed]")
      ->type_name("FILE");
  app->add_option("--out", a.out, "the output, [B, H, Lq, Dv]")->type_name("FILE")->required();
  app->add_option("--lse", a.lse, "write the log-sum-exp, [B, H, Lq]")->type_name("FILE");
  app->add_option("--backward", a.backward, "the gradient of the output")->type_name("FILE");
  app->add_option("--grads", a.grads, "folder for the gradients")->type_name("DIR");
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
  app->callback([&run, arguments] { run = [arguments] { return attend(*arguments); }; });
}

}  // namespace relpos::cli
