// Option values as the position grammar writes them.
#pragma once

#include <string>

#include "relpos/options.h"

namespace relpos {

// "none", "true", "32", "0.5" (shortest digits that read back the same), a bare or quoted word,
// "[0.5, 0.25]".
std::string option_text(const OptionValue& value);

}  // namespace relpos
