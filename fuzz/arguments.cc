// include/relpos.h with tensors of any dtype, shape and strides, in memory of just their size, and options of
// any value: every function returns a status.
#include <fuzzer/FuzzedDataProvider.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "relpos.h"
#include "relpos/call_options.h"

namespace {

constexpr const char* kPositions[] = {"",
                                      "alibi(heads=2)",
                                      "t5(heads=2, buckets=8)",
                                      "shaw(head_dim=4, max_distance=3)",
                                      "rope(head_dim=4, layout=half)",
                                      "rope_mixed(heads=2, head_dim=4, grid=[3])",
                                      "forgetting",
                                      "pair_bias",
                                      "attention_sink(heads=2)"};
constexpr int64_t kHuge[] = {int64_t{1} << 31, int64_t{1} << 62, -1,
                             std::numeric_limits<int64_t>::min(),
                             std::numeric_limits<int64_t>::max()};
constexpr int64_t kLargest = 1 << 14;  // bytes of a tensor

int64_t item_size(int32_t dtype) {
  return dtype == 1 || dtype == 4 ? 8 : dtype == 2 || dtype == 3 ? 2 : dtype > 5 ? 1 : 4;
}

class Input {
 public:
  Input(const uint8_t* data, size_t size) : bytes_(data, size) {}

  int64_t pick(int64_t low, int64_t high) { return bytes_.ConsumeIntegralInRange(low, high); }
  bool rarely() { return pick(0, 15) == 15; }
  int64_t any_int() { return rarely() ? kHuge[pick(0, std::ssize(kHuge) - 1)] : pick(-3, 12); }
  double any_real() {
    return pick(0, 3) == 0 ? bytes_.ConsumeFloatingPoint<double>()
                           : bytes_.ConsumeFloatingPointInRange(0.0, 1.0);
  }
  const char* position() { return kPositions[pick(0, std::ssize(kPositions) - 1)]; }

  // Mostly of this shape and dtype. nullptr: rarely, or where its memory would be too large to hold.
  const relpos_tensor* tensor(int32_t dtype, std::vector<int64_t> shape, bool output = false) {
    relpos_tensor made{};
    if (rarely()) shape.resize(static_cast<size_t>(pick(0, 6)), 2);
    for (int64_t& size : shape) {
      if (rarely()) size = rarely() ? kHuge[pick(0, std::ssize(kHuge) - 1)] : pick(0, 6);
    }
    made.dtype = rarely() ? static_cast<int32_t>(pick(-2, 12)) : dtype;
    made.rank = rarely() ? static_cast<int32_t>(pick(-2, 9)) : static_cast<int32_t>(shape.size());
    int64_t step = 1, low = 0, high = 0;
    bool fits = true;
    for (size_t axis = shape.size(); axis-- > 0;) {
      made.shape[axis] = shape[axis];
      made.strides[axis] = !rarely() ? step : output ? -step : pick(-4, 4);
      fits = fits && !__builtin_mul_overflow(step, std::max<int64_t>(shape[axis], 1), &step);
      int64_t far = 0;
      fits = fits && !__builtin_mul_overflow(made.strides[axis],
                                             std::max<int64_t>(shape[axis], 1) - 1, &far);
      fits = fits && !__builtin_add_overflow(far < 0 ? low : high, far, far < 0 ? &low : &high);
      if (!fits) step = 1;  // rather than what overflowed
    }
    fits = fits && high < kLargest && low > -kLargest && step < kLargest;
    if (!fits) {
      // Nobody has memory of such a size: it must be refused before anything is read.
      int64_t count = 1;
      const bool refused = std::ranges::any_of(shape, [&](int64_t size) {
        return size <= 0 || __builtin_mul_overflow(count, size, &count);
      });
      if (!refused) return nullptr;
      made.data = reinterpret_cast<void*>(uintptr_t{64});
    } else {
      const int64_t bytes = (high - low + 1) * item_size(made.dtype);
      auto& memory =
          memory_.emplace_back(std::make_unique<unsigned char[]>(static_cast<size_t>(bytes)));
      const int64_t filled = pick(0, 3);
      for (int64_t n = 0; n < bytes; ++n) {
        memory[static_cast<size_t>(n)] = filled == 0   ? bytes_.ConsumeIntegral<uint8_t>()
                                         : filled == 1 ? n % 2
                                                       : 0;
      }
      made.data = memory.get() - low * item_size(made.dtype);
    }
    return tensors_.emplace_back(std::make_unique<relpos_tensor>(made)).get();
  }

 private:
  FuzzedDataProvider bytes_;
  std::vector<std::unique_ptr<unsigned char[]>> memory_;
  std::vector<std::unique_ptr<relpos_tensor>> tensors_;
};

struct Sizes {
  int64_t batch, heads, kv_heads, queries, keys, dim, value_dim;
};

std::vector<int64_t> shape_of_option(std::string_view name, const Sizes& s, Input& input) {
  if (name == "attn_mask") return {s.batch, s.heads, s.queries, s.keys};
  if (name == "key_padding_mask") return {s.batch, s.keys};
  if (name == "q_positions" || name == "key_lo" || name == "key_hi") return {s.batch, s.queries};
  if (name == "k_positions") return {s.batch, s.keys};
  if (name == "dropout_rows") return {s.queries};
  if (name == "dropout_columns") return {s.keys};
  if (name == "tile_ranges") return {1, 1, 1, 2};
  if (name == "tile_entries") return {1, 2};
  if (name == "tile_words") return {1, std::max<int64_t>(s.queries, 1)};
  if (name == "seed") return {1};
  return {input.pick(0, 4)};
}

void set_options(relpos_call* call, const Sizes& s, Input& input) {
  using Kind = relpos::CallOption::Kind;
  const auto options = relpos::call_options();
  for (int64_t n = input.pick(0, 4); n > 0; --n) {
    const relpos::CallOption& option =
        options[static_cast<size_t>(input.pick(0, std::ssize(options) - 1))];
    const std::string name(option.name);
    if (name == "threads") continue;  // one, which a fuzzer takes
    if (option.kind == Kind::kTensor) {
      const int32_t dtype = name == "attn_mask"          ? static_cast<int32_t>(input.pick(0, 7))
                            : name == "key_padding_mask" ? RELPOS_BOOL
                                                         : RELPOS_INT64;
      relpos_call_set_tensor(call, name.c_str(),
                             input.tensor(dtype, shape_of_option(name, s, input)));
    } else if (option.kind == Kind::kReal) {
      relpos_call_set_real(call, name.c_str(), input.any_real());
    } else {
      int64_t values[3] = {input.any_int(), input.any_int(), input.any_int()};
      const size_t count = input.rarely()               ? static_cast<size_t>(input.pick(0, 3))
                           : option.kind == Kind::kPair ? 2
                                                        : 1;
      if (option.kind == Kind::kBool && !input.rarely()) values[0] &= 1;
      relpos_call_set_ints(call, name.c_str(), values, count);
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Input input(data, size);
  const std::unique_ptr<relpos_call, void (*)(relpos_call*)> call(relpos_call_new(input.position()),
                                                                  relpos_call_free);
  if (call == nullptr) std::abort();
  const int64_t one = 1;
  relpos_call_set_ints(call.get(), "threads", &one, 1);
  relpos_call_set_ints(call.get(), "enable_gqa", &one, 1);
  Sizes s{input.pick(0, 2), 2, input.pick(1, 2), input.pick(0, 6),
          input.pick(0, 6), 4, input.pick(1, 5)};
  const auto dtype = static_cast<int32_t>(input.pick(0, 3));
  relpos_parameter parameter;
  for (size_t n = 0; relpos_call_parameter(call.get(), n, &parameter) == RELPOS_OK; ++n) {
    if (parameter.given == 0) continue;
    std::vector<int64_t> shape(parameter.shape, parameter.shape + parameter.rank);
    const int64_t sizes[] = {s.batch, s.heads, s.queries, s.keys, 3, s.dim};
    for (int64_t& axis : shape) {
      if (axis < 0 && axis >= -6) axis = sizes[-axis - 1];
    }
    const int32_t of = std::string_view(parameter.name).ends_with("classes") ? RELPOS_UINT8 : dtype;
    relpos_call_set_tensor(call.get(), parameter.name, input.tensor(of, shape));
  }
  set_options(call.get(), s, input);
  const std::vector<int64_t> of_query{s.batch, s.heads, s.queries, s.dim},
      of_key{s.batch, s.kv_heads, s.keys, s.dim},
      of_value{s.batch, s.kv_heads, s.keys, s.value_dim},
      of_out{s.batch, s.heads, s.queries, s.value_dim}, of_softmax{s.batch, s.heads, s.queries, 2},
      of_lse{s.batch, s.heads, s.queries};
  const int32_t wide = dtype == RELPOS_FLOAT64 ? RELPOS_FLOAT64 : RELPOS_FLOAT32;
  const relpos_tensor *q = input.tensor(dtype, of_query), *k = input.tensor(dtype, of_key),
                      *v = input.tensor(dtype, of_value), *out = input.tensor(dtype, of_out, true),
                      *softmax = input.tensor(wide, of_softmax, true);
  relpos_forward(call.get(), q, k, v, out, input.tensor(wide, of_lse, true), softmax);
  relpos_gradients to{};
  to.out = out;
  to.softmax = softmax;
  to.dout = input.tensor(dtype, of_out);
  to.dquery = input.tensor(dtype, of_query, true);
  to.dkey = input.tensor(dtype, of_key, true);
  to.dvalue = input.tensor(dtype, of_value, true);
  relpos_backward(call.get(), q, k, v, &to);
  relpos_dense(call.get(), input.rarely() ? "value" : "key", input.any_int(), s.queries, s.keys,
               input.tensor(dtype, {2, s.queries, s.keys}, true));
  return 0;
}
