// check -> bind -> kernels -> pull back.
#include "relpos/attention.h"

#include <cstdlib>

#include "base/parallel.h"
#include "base/team.h"
#include "base/zeros.h"
#include "binding/parts.h"
#include "call/make_problem.h"
#include "kernels/fused.h"
#include "kernels/reference/reference.h"
#include "kernels/simd/targets.h"
#include "relpos/error.h"
#include "relpos/version.h"
#include "values/views.h"

namespace relpos {
namespace {

DType lse_dtype(const TensorView& query) {
  return query.dtype == DType::kFloat64 ? DType::kFloat64 : DType::kFloat32;
}

void check_lse(const TensorView& lse, const Problem& p) {
  const bool wide = lse.dtype == DType::kFloat64;
  check_output(lse, {p.batch, p.heads, p.queries}, wide ? lse.dtype : lse_dtype(p.query), "lse");
}

bool use_fused(const Problem& problem, Path path) {
  if (path == Path::kReference) return false;
  std::string why;
  const bool supported = fused_supports(problem, &why);
  check_value(
      supported || path == Path::kAuto,
      "path: expected a call that the fused path can compute, got one that it cannot: ", why);
  return supported;
}

// What the forward pass left of the softmax: its `softmax`, or its lse.
void check_softmax(const TensorView& softmax, const Problem& p) {
  std::vector<int64_t> shape{p.batch, p.heads, p.queries};
  if (softmax.rank == 4) shape.push_back(2);
  check_input(softmax, shape, softmax.rank == 4 ? "softmax" : "lse");
}

std::vector<int64_t> score_shape(const Problem& p) { return {p.batch, p.heads, p.queries, p.keys}; }

// The wanted parameters, and checks of every given gradient view.
std::vector<std::vector<bool>> wanted(const Gradients& gradients, const Position& position) {
  check_value(gradients.parameters.empty() || gradients.parameters.size() == position.parts.size(),
              "gradients: expected parameter views for ", position.parts.size(), " parts, got ",
              gradients.parameters.size());
  std::vector<std::vector<bool>> wants(position.parts.size());
  for (size_t n = 0; n < gradients.parameters.size(); ++n) {
    const auto& views = gradients.parameters[n];
    const auto& parameters = position.parts[n].parameters;
    check_value(views.size() == parameters.size(), position.parts[n].scheme().name,
                ": expected gradients of ", parameters.size(), " parameters, got ", views.size());
    for (size_t p = 0; p < views.size(); ++p) {
      wants[n].push_back(views[p].given());
      if (views[p].given()) {
        check_output(views[p], parameters[p].dims(), parameters[p].dtype, "parameter gradient");
      }
    }
  }
  return wants;
}

void check_gradient(const TensorView& gradient, const TensorView& of, const char* name) {
  if (gradient.given()) check_output(gradient, of.dims(), of.dtype, name);
}

// Runs `body` with gradient buffers ready and writes what it leaves in them. `by_rows`: it can write the
// gradient of a mask by rows.
template <typename F>
void with_gradients(Call& call, const Position& position, const Options& options,
                    const Gradients& gradients, bool by_rows, F&& body) {
  Problem& problem = call.problem;
  check_gradient(gradients.query, problem.query, "dquery");
  check_gradient(gradients.key, problem.key, "dkey");
  if (problem.value.given()) check_gradient(gradients.value, problem.value, "dvalue");

  ProblemGradients inner;
  inner.query = gradients.query;
  inner.key = gradients.key;
  inner.value = gradients.value;
  TermGradients terms = TermGradients::zeros(problem.terms);
  inner.terms = &terms;
  std::vector<double> mask;
  if (gradients.attn_mask.given()) {
    check_value(problem.visible.floating_mask(),
                "attn_mask: only a floating mask has a gradient; this call has ",
                options.attn_mask.given() ? "a bool mask" : "no mask");
    check_gradient(gradients.attn_mask, options.attn_mask, "dattn_mask");
    inner.mask_index =
        broadcast_view(TensorView(nullptr, DType::kFloat32, options.attn_mask.dims()),
                       score_shape(problem), "attn_mask");
    if (by_rows && !shares_elements(inner.mask_index)) {
      write_zeros(gradients.attn_mask, problem.threads, problem.cancel);
      inner.mask_rows = broadcast_view(gradients.attn_mask, score_shape(problem), "dattn_mask");
    } else {
      mask = zeros(options.attn_mask.numel());
      inner.mask = &mask;
    }
  }
  body(inner);
  if (inner.mask != nullptr) write_values(mask, gradients.attn_mask);
  terms = call.heads.spread(call.whole, std::move(terms));
  pull_back_parts(position, call.sizes, call.wants, std::move(terms), gradients.parameters);
}

}  // namespace

void attention(const TensorView& query, const TensorView& key, const TensorView& value,
               const Position& position, const Options& options, const TensorView& out,
               const TensorView& lse, const TensorView& softmax) {
  const CallScope scope(options.cancel);
  check_value(value.given(), "value: expected [B, Hk, Lk, Dv], got nothing");
  const Call call = make_call(query, key, value, position, options);
  const Problem& p = call.problem;
  check_output(out, {p.batch, p.heads, p.queries, p.value_dim}, query.dtype, "out");
  if (lse.given()) check_lse(lse, p);
  if (softmax.given()) {
    check_output(softmax, {p.batch, p.heads, p.queries, 2}, lse_dtype(query), "softmax");
  }
  const ForwardResults to{out, lse, softmax};
  if (use_fused(p, options.path)) {
    // An lse in double goes back to attention_backward, whose scores' bits it then fits.
    fused_forward(p, to, lse.given() && lse.dtype == DType::kFloat64);
  } else {
    reference_forward(p, to);
  }
}

void attention_backward(const TensorView& query, const TensorView& key, const TensorView& value,
                        const TensorView& out, const TensorView& softmax, const TensorView& dout,
                        const TensorView& dlse, const Position& position, const Options& options,
                        const Gradients& gradients) {
  const CallScope scope(options.cancel);
  check_value(value.given(), "value: expected [B, Hk, Lk, Dv], got nothing");
  Call call = make_call(query, key, value, position, options, wanted(gradients, position));
  const Problem& p = call.problem;
  const std::vector<int64_t> out_shape{p.batch, p.heads, p.queries, p.value_dim};
  check_input(out, out_shape, "out");
  check_softmax(softmax, p);
  check_input(dout, out_shape, "dout");
  if (dlse.given()) check_input(dlse, {p.batch, p.heads, p.queries}, "dlse");
  const bool fused = use_fused(p, options.path);
  with_gradients(call, position, options, gradients, fused, [&](const ProblemGradients& inner) {
    if (fused) {
      fused_backward(p, out, softmax, dout, dlse, inner);
    } else {
      reference_backward(p, out, softmax.rank == 3 ? softmax : TensorView{}, dout, dlse, inner);
    }
  });
}

void attention_weights(const TensorView& query, const TensorView& key, const TensorView& softmax,
                       const Position& position, const Options& options,
                       const TensorView& weights) {
  const CallScope scope(options.cancel);
  const Call call = make_call(query, key, {}, position, options);
  const Problem& p = call.problem;
  check_softmax(softmax, p);
  check_output(weights, score_shape(p), query.dtype, "weights");
  if (use_fused(p, options.path)) {
    fused_emit(p, softmax, weights);
  } else {
    reference_weights(p, weights);
  }
}

void scores(const TensorView& query, const TensorView& key, const Position& position,
            const Options& options, const TensorView& out) {
  const CallScope scope(options.cancel);
  const Call call = make_call(query, key, {}, position, options);
  const Problem& p = call.problem;
  check_output(out, score_shape(p), query.dtype, "out");
  if (use_fused(p, options.path)) {
    fused_emit(p, {}, out);
  } else {
    reference_scores(p, out);
  }
}

void scores_backward(const TensorView& query, const TensorView& key, const TensorView& dscores,
                     const Position& position, const Options& options, const Gradients& gradients) {
  const CallScope scope(options.cancel);
  Call call = make_call(query, key, {}, position, options, wanted(gradients, position));
  check_input(dscores, score_shape(call.problem), "dscores");
  with_gradients(call, position, options, gradients, false, [&](const ProblemGradients& inner) {
    reference_scores_backward(call.problem, dscores, inner);
  });
}

int64_t workspace_bytes(const TensorView& query, const TensorView& key, const TensorView& value,
                        const Position& position, const Options& options, bool backward) {
  const CallScope scope(options.cancel);
  std::vector<std::vector<bool>> wants;
  for (const Part& part : position.parts) wants.emplace_back(part.parameters.size(), backward);
  const Call call = make_call(query, key, value, position, options, wants);
  return use_fused(call.problem, options.path) ? fused_workspace_bytes(call.problem, backward) : 0;
}

std::vector<std::pair<std::string, std::string>> show_config() {
  const Target& target = current_target();
  const char* bf16 = std::getenv("RELPOS_BF16");
  std::string available;
  for (const std::string& name : target.available)
    available += (available.empty() ? "" : " ") + name;
  return {
      {"version", RELPOS_VERSION},
      {"target", target.name},
      {"target of float32", target.of_float32},
      {"targets available", available},
      {"RELPOS_TARGET", target.forced.empty() ? "not set" : target.forced},
      {"RELPOS_BF16", bf16 == nullptr || *bf16 == '\0' ? "not set" : bf16},
      {"threads", std::to_string(thread_count(0))},
      {"thread backend", thread_backend()},
      {"after fork", in_forked_child() ? "yes: its threads are a pool of its own" : "no"},
      {"fused", "rotation, distance bias, row table, column table, value table, key bias"},
      {"reference path", "decaying rotation at explicit positions, float64, gradient of scores()"},
  };
}

}  // namespace relpos
