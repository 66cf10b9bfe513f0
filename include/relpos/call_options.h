// The options of a call by name, as other languages set them.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <utility>
#include <variant>

#include "relpos/attention.h"
#include "relpos/export.h"

RELPOS_EXPORT_BEGIN
namespace relpos {

using CallArgument = std::variant<bool, int64_t, double, std::pair<int64_t, int64_t>, TensorView>;

struct CallOption {
  enum class Kind { kBool, kInt, kReal, kPair, kTensor };  // the alternatives of CallArgument

  std::string_view name;      // of one member of Options, or of a part of one: "q_offsets"
  std::string_view given_as;  // what a tensor is called in errors: "q_offset"
  Kind kind;
  void (*set)(Options& to, const CallArgument& argument);  // whose alternative is the kind
};

// Every one that is a number or a tensor. dropout's seed is an int64 tensor of one element.
std::span<const CallOption> call_options();
// nullptr where there is none of that name.
const CallOption* find_call_option(std::string_view name);

}  // namespace relpos
RELPOS_EXPORT_END
