// Options of a scheme in the words of the command line: SCHEME, then a line NAME=WORD for each. They are a
// part, or an Error.
#include <cstdint>
#include <string>

#include "cli/common.h"
#include "cli/options/scheme_options.h"
#include "relpos/error.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  const std::vector<std::string> lines = relpos::cli::split(text, '\n');
  const relpos::Scheme* scheme = relpos::find_scheme(lines.empty() ? "" : lines[0]);
  if (scheme == nullptr) return 0;
  try {
    relpos::cli::GivenOptions given;
    for (size_t n = 1; n < lines.size(); ++n) {
      const size_t equals = lines[n].find('=');
      const std::string name = lines[n].substr(0, equals);
      for (const relpos::OptionSpec& spec : scheme->options) {
        if (equals == std::string::npos || !spec.goes_by(name)) continue;
        given.emplace_back(name, relpos::cli::parse_option(spec, lines[n].substr(equals + 1)));
      }
    }
    relpos::cli::fill_required(*scheme, 8, given);
    relpos::make_part(*scheme, given);
  } catch (const relpos::Error&) {
  }
  return 0;
}
