// relpos.h: the C++ API behind opaque handles. No exception leaves a function of it.
#include "relpos.h"

#include <algorithm>
#include <deque>
#include <exception>
#include <map>
#include <new>
#include <string>
#include <vector>

#include "relpos/relpos.h"

namespace {

using relpos::CallOption;
using relpos::check_value;
using relpos::DType;
using relpos::ErrorKind;
using relpos::ParameterSpec;
using relpos::TensorView;

// The ABI's numbers stay, whatever order the C++ API has.
constexpr bool is(DType ours, relpos_dtype theirs) { return static_cast<int>(ours) == theirs; }
static_assert(is(DType::kFloat32, RELPOS_FLOAT32) && is(DType::kFloat64, RELPOS_FLOAT64) &&
              is(DType::kBFloat16, RELPOS_BFLOAT16) && is(DType::kFloat16, RELPOS_FLOAT16) &&
              is(DType::kInt64, RELPOS_INT64) && is(DType::kInt32, RELPOS_INT32) &&
              is(DType::kBool, RELPOS_BOOL) && is(DType::kUInt8, RELPOS_UINT8));
static_assert(RELPOS_MAX_RANK == relpos::kMaxRank);

thread_local std::string last_error;  // NOLINT: what relpos_last_error promises

int failed(int status, const char* text) noexcept {
  try {
    last_error = text;
  } catch (...) {
    last_error.clear();
  }
  return status;
}

int status_of(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::kValue:
      return RELPOS_ERROR_VALUE;
    case ErrorKind::kType:
      return RELPOS_ERROR_TYPE;
    case ErrorKind::kIo:
      return RELPOS_ERROR_IO;
    case ErrorKind::kMemory:
      return RELPOS_ERROR_MEMORY;
    case ErrorKind::kCancelled:
      break;
  }
  return RELPOS_ERROR_OTHER;
}

template <typename F>
int guarded(F&& run) noexcept {
  try {
    run();
    return RELPOS_OK;
  } catch (...) {
    try {
      const relpos::Error error = relpos::as_error(std::current_exception());
      return failed(status_of(error.kind()), error.what());
    } catch (const std::bad_alloc&) {  // not even for the text of the Error
      return failed(RELPOS_ERROR_MEMORY, "out of memory");
    } catch (const std::exception& error) {
      return failed(RELPOS_ERROR_OTHER, error.what());
    } catch (...) {
      return failed(RELPOS_ERROR_OTHER, "an unknown error");
    }
  }
}

TensorView view_of(const char* name, const relpos_tensor* tensor, bool optional = false) {
  if (tensor == nullptr) {
    check_value(optional, name, ": expected a tensor, got NULL");
    return {};
  }
  check_value(tensor->rank >= 0 && tensor->rank <= RELPOS_MAX_RANK, name,
              ": expected a rank from 0 to ", RELPOS_MAX_RANK, ", got ", tensor->rank);
  check_value(tensor->dtype >= 0 && tensor->dtype <= RELPOS_UINT8, name,
              ": expected a dtype of relpos_dtype, got ", tensor->dtype);
  const auto rank = static_cast<size_t>(tensor->rank);
  const std::vector<int64_t> shape(tensor->shape, tensor->shape + rank);
  const std::vector<int64_t> strides(tensor->strides, tensor->strides + rank);
  TensorView view(tensor->data, static_cast<DType>(tensor->dtype), shape, strides);
  check_value(view.data != nullptr || view.numel() == 0, name, ": expected memory, got NULL");
  return view;
}

// Values that follow from the options, float64 or float32.
relpos::Tensor fixed_values(const ParameterSpec& spec, DType dtype) {
  relpos::Tensor made(dtype, spec.shape);
  const std::vector<double>& values = spec.init.values;
  for (int64_t n = 0; n < made.view().numel(); ++n) {
    made.view().store(n, values[values.size() == 1 ? 0 : static_cast<size_t>(n)]);
  }
  return made;
}

}  // namespace

struct relpos_call {
  struct Slot {
    std::string name;
    size_t part, index;
    bool given;
    relpos::Tensor narrow, wide;  // of values that follow from the options
  };

  relpos::Position position;
  relpos::Options options;
  std::deque<Slot> slots;
  std::map<std::string, relpos::Tensor> numbers;  // options that were set by their numbers

  explicit relpos_call(const char* text) {
    if (*text != '\0') position = relpos::parse_position(text);
    std::map<std::string, int> times;
    for (size_t p = 0; p < position.parts.size(); ++p) {
      relpos::Part& part = position.parts[p];
      const int again = ++times[part.scheme().name];
      const std::string scheme =
          part.scheme().name + (again > 1 ? "#" + std::to_string(again) : std::string());
      part.parameters.resize(part.specs().size());
      for (size_t n = 0; n < part.specs().size(); ++n) {
        const ParameterSpec& spec = part.specs()[n];
        Slot slot{scheme + "." + spec.name, p, n, spec.trainable || spec.input, {}, {}};
        if (!slot.given) {
          slot.narrow = fixed_values(spec, DType::kFloat32);
          slot.wide = fixed_values(spec, DType::kFloat64);
        }
        slots.push_back(std::move(slot));
      }
    }
  }

  const ParameterSpec& spec(const Slot& slot) const {
    return position.parts[slot.part].specs()[slot.index];
  }

  // The position with every tensor, for a call in a dtype.
  relpos::Position bound(DType dtype) const {
    relpos::Position whole = position;
    for (const Slot& slot : slots) {
      TensorView& view = whole.parts[slot.part].parameters[slot.index];
      if (!slot.given) view = (dtype == DType::kFloat64 ? slot.wide : slot.narrow).view();
      check_value(view.given(), "position: ", slot.name, ": expected ",
                  relpos::sizes_text(spec(slot).shape),
                  ", got none: set it by relpos_call_set_tensor");
    }
    return whole;
  }

  const CallOption& option(const char* name) const {
    const CallOption* found = relpos::find_call_option(name);
    check_value(found != nullptr, "name: there is no option ", name);
    return *found;
  }
};

const char* relpos_version(void) { return RELPOS_VERSION; }

const char* relpos_last_error(void) { return last_error.c_str(); }

const char* relpos_scheme(size_t n, const char** summary) {
  const char* name = nullptr;
  guarded([&] {
    const std::vector<relpos::Scheme>& all = relpos::schemes();
    if (n >= all.size()) return;
    name = all[n].name.c_str();
    if (summary != nullptr) *summary = all[n].summary.c_str();
  });
  return name;
}

relpos_call* relpos_call_new(const char* position) {
  relpos_call* made = nullptr;
  guarded([&] {
    check_value(position != nullptr, "position: expected a text, got NULL");
    made = new relpos_call(position);
  });
  return made;
}

void relpos_call_free(relpos_call* call) { delete call; }

int relpos_call_parameter(const relpos_call* call, size_t n, relpos_parameter* found) {
  return guarded([&] {
    check_value(call != nullptr && found != nullptr, "call: expected one, got NULL");
    check_value(n < call->slots.size(), "n: expected below ", call->slots.size(), ", got ", n);
    const relpos_call::Slot& slot = call->slots[n];
    const ParameterSpec& spec = call->spec(slot);
    *found = {slot.name.c_str(),
              spec.doc.c_str(),
              slot.given ? 1 : 0,
              static_cast<int32_t>(spec.shape.size()),
              {}};
    std::copy(spec.shape.begin(), spec.shape.end(), found->shape);
  });
}

int relpos_call_set_ints(relpos_call* call, const char* name, const int64_t* values, size_t count) {
  return guarded([&] {
    check_value(call != nullptr && name != nullptr && values != nullptr,
                "call, name, values: expected all, got NULL");
    const CallOption& option = call->option(name);
    const auto counted = [&](size_t expected) {
      check_value(count == expected, name, ": expected ", expected, " numbers, got ", count);
    };
    switch (option.kind) {
      case CallOption::Kind::kBool:
        counted(1);
        check_value(values[0] == 0 || values[0] == 1, name, ": expected 0 or 1, got ", values[0]);
        option.set(call->options, values[0] == 1);
        return;
      case CallOption::Kind::kInt:
        counted(1);
        option.set(call->options, values[0]);
        return;
      case CallOption::Kind::kPair:
        counted(2);
        option.set(call->options, std::pair(values[0], values[1]));
        return;
      case CallOption::Kind::kReal:
        counted(1);
        option.set(call->options, static_cast<double>(values[0]));
        return;
      case CallOption::Kind::kTensor:
        break;
    }
    relpos::Tensor made(DType::kInt64, {static_cast<int64_t>(count)});
    std::copy(values, values + count, made.data<int64_t>());
    relpos::Tensor& kept = call->numbers[name];
    kept = std::move(made);
    option.set(call->options, kept.view());
  });
}

int relpos_call_set_real(relpos_call* call, const char* name, double value) {
  return guarded([&] {
    check_value(call != nullptr && name != nullptr, "call, name: expected both, got NULL");
    const CallOption& option = call->option(name);
    check_value(option.kind == CallOption::Kind::kReal, name, ": expected no real number, got ",
                value);
    option.set(call->options, value);
  });
}

int relpos_call_set_tensor(relpos_call* call, const char* name, const relpos_tensor* tensor) {
  return guarded([&] {
    check_value(call != nullptr && name != nullptr, "call, name: expected both, got NULL");
    const TensorView view = view_of(name, tensor);
    for (const relpos_call::Slot& slot : call->slots) {
      if (slot.name != name) continue;
      check_value(slot.given, name, ": expected none, since it follows from the options");
      call->position.parts[slot.part].parameters[slot.index] = view;
      return;
    }
    const CallOption& option = call->option(name);
    check_value(option.kind == CallOption::Kind::kTensor, name, ": expected no tensor, got one");
    option.set(call->options, view);
  });
}

int relpos_forward(const relpos_call* call, const relpos_tensor* query, const relpos_tensor* key,
                   const relpos_tensor* value, const relpos_tensor* out, const relpos_tensor* lse,
                   const relpos_tensor* softmax) {
  return guarded([&] {
    check_value(call != nullptr, "call: expected one, got NULL");
    const TensorView q = view_of("query", query), k = view_of("key", key);
    const TensorView v = view_of("value", value), o = view_of("out", out);
    const TensorView l = view_of("lse", lse, true), s = view_of("softmax", softmax, true);
    relpos::attention(q, k, v, call->bound(q.dtype), call->options, o, l, s);
  });
}

int relpos_backward(const relpos_call* call, const relpos_tensor* query, const relpos_tensor* key,
                    const relpos_tensor* value, const relpos_gradients* of) {
  return guarded([&] {
    check_value(call != nullptr && of != nullptr, "call, gradients: expected both, got NULL");
    const TensorView q = view_of("query", query), k = view_of("key", key);
    const TensorView v = view_of("value", value), o = view_of("out", of->out);
    const TensorView s = view_of("softmax", of->softmax), d = view_of("dout", of->dout);
    const TensorView dl = view_of("dlse", of->dlse, true);
    relpos::Gradients wanted{view_of("dquery", of->dquery, true),
                             view_of("dkey", of->dkey, true),
                             view_of("dvalue", of->dvalue, true),
                             {},
                             view_of("dmask", of->dmask, true)};
    for (const relpos::Part& part : call->position.parts) {
      wanted.parameters.emplace_back(part.parameters.size());
    }
    for (size_t n = 0; n < call->slots.size() && of->dparameters != nullptr; ++n) {
      const relpos_call::Slot& slot = call->slots[n];
      wanted.parameters[slot.part][slot.index] =
          view_of(slot.name.c_str(), of->dparameters[n], true);
    }
    relpos::attention_backward(q, k, v, o, s, d, dl, call->bound(q.dtype), call->options, wanted);
  });
}

int relpos_dense(const relpos_call* call, const char* which, int64_t q_offset, int64_t queries,
                 int64_t keys, const relpos_tensor* out) {
  return guarded([&] {
    check_value(call != nullptr && which != nullptr, "call, which: expected both, got NULL");
    const TensorView o = view_of("out", out);
    const relpos::Position position = call->bound(o.dtype);
    check_value(position.parts.size() == 1, "position: expected one scheme, got ",
                position.parts.size());
    relpos::dense(position.parts[0], {queries, keys, q_offset}, which, o);
  });
}
