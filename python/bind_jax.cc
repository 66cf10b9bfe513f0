// Handlers of XLA's FFI, by which relpos.jax computes. They use the parts of XLA's C API that did not
// change since its version 0.1, and hold neither Python's lock nor its objects.
#include <algorithm>
#include <exception>

#include "arguments.h"
#include "xla_call.h"

namespace relpos {
namespace {

XLA_FFI_Error* failed(const XLA_FFI_CallFrame& frame, XLA_FFI_Error_Code code, const char* text) {
  XLA_FFI_Error_Create_Args args{XLA_FFI_Error_Create_Args_STRUCT_SIZE, nullptr, text, code};
  return frame.api->XLA_FFI_Error_Create(&args);
}

// XLA asks each handler for its version before the first call; where its own is 0.1 it does so without an
// api.
bool answers_metadata(const XLA_FFI_CallFrame& frame) {
  const XLA_FFI_Extension_Base* base = frame.extension_start;
  if (base == nullptr || base->type != XLA_FFI_Extension_Metadata) return false;
  XLA_FFI_Metadata& to = *reinterpret_cast<const XLA_FFI_Metadata_Extension*>(base)->metadata;
  const int asked = frame.api == nullptr ? 1 : frame.api->api_version.minor_version;
  const int minor = std::min(XLA_FFI_API_MINOR, asked);
  to.api_version = {XLA_FFI_Api_Version_STRUCT_SIZE, nullptr, XLA_FFI_API_MAJOR, minor};
  to.traits = 0;
  if (to.struct_size >= sizeof(XLA_FFI_Metadata)) to.state_type_id = XLA_FFI_UNKNOWN_TYPE_ID;
  return true;
}

XLA_FFI_Error_Code code_of(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::kCancelled:
      return XLA_FFI_Error_Code_CANCELLED;
    case ErrorKind::kMemory:
      return XLA_FFI_Error_Code_RESOURCE_EXHAUSTED;
    case ErrorKind::kIo:
      return XLA_FFI_Error_Code_INTERNAL;
    case ErrorKind::kType:
    case ErrorKind::kValue:
      break;
  }
  return XLA_FFI_Error_Code_INVALID_ARGUMENT;
}

template <void (*compute)(const XlaTensors&)>
XLA_FFI_Error* handler(XLA_FFI_CallFrame* frame) noexcept {
  try {
    if (answers_metadata(*frame)) return nullptr;
    if (frame->stage == XLA_FFI_ExecutionStage_EXECUTE) XlaCall(*frame).run(compute);
    return nullptr;
  } catch (...) {
    try {
      const Error error = as_error(std::current_exception());
      return failed(*frame, code_of(error.kind()), error.what());
    } catch (const std::exception& error) {
      return failed(*frame, XLA_FFI_Error_Code_INTERNAL, error.what());
    } catch (...) {
      return failed(*frame, XLA_FFI_Error_Code_INTERNAL, "relpos: an unknown error");
    }
  }
}

void forward(const XlaTensors& t) {
  attention(t.query, t.key, t.value, t.position, t.options, t.out, t.lse, t.softmax);
}

void backward(const XlaTensors& t) {
  attention_backward(t.query, t.key, t.value, t.out, t.softmax, t.dout, t.dlse, t.position,
                     t.options, t.gradients);
}

void weights(const XlaTensors& t) {
  attention_weights(t.query, t.key, t.softmax, t.position, t.options, t.weights);
}

nb::capsule capsule(XLA_FFI_Handler* held) {
  return nb::capsule(reinterpret_cast<const void*>(held));
}

}  // namespace

void bind_jax(nb::module_& module) {
  module.def("xla_handlers", [] {
    nb::dict handlers;
    handlers["relpos_attention"] = capsule(handler<forward>);
    handlers["relpos_attention_backward"] = capsule(handler<backward>);
    handlers["relpos_attention_weights"] = capsule(handler<weights>);
    return handlers;
  });
}

}  // namespace relpos
