// relpos attend: attention and its gradients on files.
#include <array>
#include <chrono>
#include <cstdio>
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
#include "parameters.h"
#include "relpos/attention.h"

namespace relpos::cli {
namespace {

using Json = nlohmann::ordered_json;

struct AttendArguments {
  std::string query, key, value, position, params, out, lse, backward, grads;
  std::string mask, padding, q_offset, k_offset, q_positions, k_positions, key_lo, key_hi;
  std::string window, path = "auto";
  std::optional<double> scale;
  double dropout = 0.0;
  uint64_t seed = 0;
  int threads = 0;
  bool causal = false, enable_gqa = false, json = false, quiet = false;
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

Tensor read_heads(const std::string& path, const char* name) {
  Tensor tensor = read_tensor(path);
  const int rank = tensor.view().rank;
  check_value(rank >= 2 && rank <= 4, name, ": ", path,
              ": expected rank 4 [B, H, L, D] (or 3, or 2), got shape ",
              tensor.view().shape_text());
  return tensor;
}

// `shape` without the leading axes that an input of rank `rank` did not have.
std::vector<int64_t> trimmed(const std::vector<int64_t>& shape, int rank) {
  return {shape.begin() + (4 - rank), shape.end()};
}

Offset read_offset(const std::string& text, const char* flag, Tensor& rows) {
  if (!has_extension(text, ".npy")) return parse_int(text, flag);
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
  options.dropout_p = a.dropout;
  options.seed = a.seed;
  options.threads = a.threads;
  options.path = a.path == "auto"    ? Path::kAuto
                 : a.path == "fused" ? Path::kFused
                                     : Path::kReference;
  if (!a.window.empty()) {
    const std::vector<std::string> sides = split(a.window, ',');
    check_value(sides.size() == 2, "--window: expected LEFT,RIGHT, got ", a.window);
    options.window = {parse_int(sides[0], "--window"), parse_int(sides[1], "--window")};
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
  options.cancel = &cancel_on_interrupt();
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

// What attend writes besides out and lse: one tensor for each input that has a gradient.
struct GradientFiles {
  Gradients views;
  std::vector<std::pair<std::string, Tensor>> tensors;

  TensorView add(const std::string& name, const TensorView& of) {
    return tensors.emplace_back(name, Tensor(of.dtype, of.dims())).second.view();
  }
};

int attend(const AttendArguments& a) {
  check_value(a.backward.empty() == a.grads.empty(),
              "--backward and --grads go together: the gradient of the output, and a folder");
  OptionTensors tensors;
  const Options options = make_call_options(a, tensors);
  const Tensor q = read_heads(a.query, "query"), k = read_heads(a.key, "key"),
               v = read_heads(a.value, "value");
  const TensorView query = with_rank(q.view(), 4), key = with_rank(k.view(), 4),
                   value = with_rank(v.view(), 4);
  const DType dtype = query.dtype;
  const DType lse_dtype = dtype == DType::kFloat64 ? DType::kFloat64 : DType::kFloat32;
  check_writable(a.out, dtype);
  if (!a.lse.empty()) check_writable(a.lse, lse_dtype);
  Position position = make_position(a.position, query);
  const Parameters parameters(position, a.params, a.seed, lse_dtype);
  if (!parameters.missing_text().empty() && !a.quiet)
    note("relpos attend: " + parameters.missing_text());

  const std::vector<int64_t> shape{query.shape[0], query.shape[1], query.shape[2], value.shape[3]};
  const Tensor out(dtype, shape), lse(lse_dtype, {shape[0], shape[1], shape[2]});
  const Tensor dout = a.backward.empty() ? Tensor() : read_heads(a.backward, "backward");
  throw_if_interrupted();
  const auto start = std::chrono::steady_clock::now();
  attention(query, key, value, position, options, out.view(), lse.view());

  GradientFiles gradients;
  gradients.tensors.reserve(4 + parameters.items().size());
  if (!a.backward.empty()) {
    Gradients& views = gradients.views;
    views.query = with_rank(gradients.add("dq", q.view()), 4);
    views.key = with_rank(gradients.add("dk", k.view()), 4);
    views.value = with_rank(gradients.add("dv", v.view()), 4);
    if (options.attn_mask.given() && is_floating(options.attn_mask.dtype)) {
      views.attn_mask = gradients.add("dmask", options.attn_mask);
    }
    for (const Part& part : position.parts) views.parameters.emplace_back(part.parameters.size());
    for (const Parameter& item : parameters.items()) {
      if (!item.spec.trainable) continue;
      views.parameters[item.part][item.index] = gradients.add(item.name, item.tensor.view());
    }
    attention_backward(query, key, value, out.view(), lse.view(), with_rank(dout.view(), 4), {},
                       position, options, views);
  }
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  throw_if_interrupted();

  write_tensor(a.out, TensorView(out.view().data, dtype, trimmed(shape, q.view().rank)));
  if (!a.lse.empty()) {
    const std::vector<int64_t> rows(shape.begin(), shape.end() - 1);
    write_tensor(a.lse, TensorView(lse.view().data, lse_dtype, trimmed(rows, q.view().rank)));
  }
  Json written = Json::object();
  if (!a.grads.empty()) std::filesystem::create_directories(a.grads);
  for (const auto& [name, tensor] : gradients.tensors) {
    const std::string path = gradient_path(a.grads, name, tensor.view().dtype);
    write_tensor(path, tensor.view());
    written[name] = path;
  }

  const std::string text = position.parts.empty() ? "none" : position_text(position);
  if (a.json) {
    Json drawn = Json::array();
    for (const Parameter& item : parameters.items()) {
      drawn.push_back({{"name", item.name},
                       {"shape", item.spec.shape},
                       {"dtype", dtype_name(item.tensor.view().dtype)},
                       {"trainable", item.spec.trainable},
                       {"from", item.from_file ? "file" : "init"}});
    }
    Json result = {{"position", text},
                   {"query", query.dims()},
                   {"key", key.dims()},
                   {"value", value.dims()},
                   {"dtype", dtype_name(dtype)},
                   {"path", a.path},
                   {"seconds", seconds},
                   {"out", a.out},
                   {"lse", a.lse.empty() ? Json(nullptr) : Json(a.lse)},
                   {"gradients", written},
                   {"parameters", drawn}};
    print_json(result);
  } else if (!a.quiet) {
    std::array<char, 64> time{};
    std::snprintf(time.data(), time.size(), "%.1f ms", seconds * 1e3);
    note("attend: query " + query.shape_text() + ", key " + key.shape_text() + ", value " +
         value.shape_text() + ", " + dtype_name(dtype) + ", position " + text + ", " +
         (a.backward.empty() ? "forward " : "forward and backward ") + time.data() + ", path " +
         a.path + ", wrote " + a.out);
  }
  return kOk;
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
      "Arrays are [B, H, L, D], [H, L, D] or [L, D], in .npy or .safetensors. heads and head_dim "
      "of\n"
      "the schemes come from the query. Parameters go by their dotted names, PART.name where two\n"
      "parts share one; gradients are written as dq, dk, dv and by those names.");
  auto arguments = std::make_shared<AttendArguments>();
  AttendArguments& a = *arguments;
  app->add_option("--query", a.query, "[B, H, Lq, D]")->type_name("FILE")->required();
  app->add_option("--key", a.key, "[B, Hk, Lk, D]")->type_name("FILE")->required();
  app->add_option("--value", a.value, "[B, Hk, Lk, Dv]")->type_name("FILE")->required();
  app->add_option("--position", a.position, "a scheme or a sum [none]")->type_name("TEXT");
  app->add_option("--params", a.params, "parameters [drawn with --seed]")->type_name("FILE");
  app->add_option("--out", a.out, "the output, [B, H, Lq, Dv]")->type_name("FILE")->required();
  app->add_option("--lse", a.lse, "write the log-sum-exp, [B, H, Lq]")->type_name("FILE");
  app->add_option("--backward", a.backward, "the gradient of the output")->type_name("FILE");
  app->add_option("--grads", a.grads, "folder for the gradients")->type_name("DIR");
  app->add_flag("--causal", a.causal, "keys at pos_k <= pos_q only");
  app->add_option("--window", a.window, "-L <= pos_k - pos_q <= R, -1: no bound")->type_name("L,R");
  app->add_option("--q-offset", a.q_offset, "position of query 0, or an int64 [B]")
      ->type_name("N|FILE");
  app->add_option("--k-offset", a.k_offset, "position of key 0, or an int64 [B] [0]")
      ->type_name("N|FILE");
  app->add_option("--q-positions", a.q_positions, "int64 [Lq] or [B, Lq]")->type_name("FILE");
  app->add_option("--k-positions", a.k_positions, "int64 [Lk] or [B, Lk]")->type_name("FILE");
  app->add_option("--key-lo", a.key_lo, "first key of each query, int64")->type_name("FILE");
  app->add_option("--key-hi", a.key_hi, "one past its last key, int64")->type_name("FILE");
  app->add_option("--mask", a.mask, "bool (true: attend), or numbers to add")->type_name("FILE");
  app->add_option("--key-padding-mask", a.padding, "bool [B, Lk], true: padding")
      ->type_name("FILE");
  app->add_option("--scale", a.scale, "of the scores [1/sqrt(D)]");
  app->add_flag("--enable-gqa", a.enable_gqa, "fewer key heads than query heads");
  app->add_option("--dropout", a.dropout, "probability [0]");
  app->add_option("--seed", a.seed, "of dropout and of drawn parameters [0]");
  app->add_option("--threads", a.threads, "[the runtime's default]");
  add_choice(*app, "--path", a.path, {"auto", "fused", "reference"}, "which implementation [auto]");
  app->add_flag("--quiet", a.quiet, "no summary on stderr");
  app->add_flag("--json", a.json, "the summary as JSON on stdout");
  app->callback([&run, arguments] { run = [arguments] { return attend(*arguments); }; });
}

}  // namespace relpos::cli
