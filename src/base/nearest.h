// The name that a misspelt one probably meant.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "relpos/export.h"

RELPOS_EXPORT_BEGIN
namespace relpos {

// The nearest of `names` by edit distance (case and '-' against '_' do not count), or "" where none
// is near. A prefix of a name is near it.
std::string nearest_name(std::string_view given, const std::vector<std::string>& names);

// "; did you mean 'rope'?", or where none is near "; expected one of 'alibi', 'rope'".
std::string suggestion(std::string_view given, const std::vector<std::string>& names);

// "'a', 'b'".
std::string quoted_list(const std::vector<std::string>& names);

}  // namespace relpos
RELPOS_EXPORT_END
