// parse_position: any text is a position, whose own text gives the same again, or an Error.
#include "relpos/position.h"

#include <cstdint>
#include <cstdlib>
#include <string>

#include "relpos/error.h"

namespace {

// To the value of every option.
bool same(const relpos::Position& a, const relpos::Position& b) {
  if (a.parts.size() != b.parts.size()) return false;
  for (size_t n = 0; n < a.parts.size(); ++n) {
    const relpos::OptionValues& x = a.parts[n].options().items();
    const relpos::OptionValues& y = b.parts[n].options().items();
    if (a.parts[n].scheme().name != b.parts[n].scheme().name || x != y) return false;
  }
  return true;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  relpos::Position position;
  try {
    position = relpos::parse_position(text, {{"heads", int64_t{2}}, {"head_dim", int64_t{8}}});
  } catch (const relpos::Error&) {
    return 0;
  }
  const std::string own = relpos::position_text(position);
  const relpos::Position again = relpos::parse_position(own);
  if (!same(position, again) || relpos::position_text(again) != own) std::abort();
  return 0;
}
