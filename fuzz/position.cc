// parse_position: any text is a position, whose own text gives the same again, or an Error.
#include "relpos/position.h"

#include <cstdint>
#include <cstdlib>
#include <new>
#include <string>

#include "relpos/error.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  std::string own;
  try {
    own = relpos::position_text(
        relpos::parse_position(text, {{"heads", int64_t{2}}, {"head_dim", int64_t{8}}}));
  } catch (const relpos::Error&) {
    return 0;
  }
  if (relpos::position_text(relpos::parse_position(own)) != own) std::abort();
  return 0;
}
