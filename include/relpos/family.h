// The terms of a scheme, and the family of schemes with like terms.
#pragma once

#include <string>
#include <vector>

#include "relpos/export.h"
#include "relpos/position.h"

RELPOS_EXPORT_BEGIN
namespace relpos {

// The smallest options that make a part of the scheme: the required ones.
OptionValues example_options(const Scheme& scheme);
// The kinds of terms that a part has, each once, as terms.h calls them: "rotation", "row table".
std::vector<std::string> term_kinds(const Part& part);

// Whether a term of the part depends on where tokens stand; sinks do not.
bool reads_positions(const Part& part);

// Whether a part computes tables for the distances of a call.
bool reads_distances(const Position& position);
// Whether a part's terms depend on the length of a call.
bool reads_length(const Position& position);
// Whether calls whose last query is far are refused.
bool has_reach(const Position& position);

// Schemes of like terms: "rotation", or "rows" (of tables, for queries, keys or values), or "bias",
// the first that occurs among the terms; "other" where none does.
struct Family {
  std::string name, summary;
};
const std::vector<Family>& families();
const Family& family(const Part& part);
// The family of the part that example_options make.
const Family& family(const Scheme& scheme);

}  // namespace relpos
RELPOS_EXPORT_END
