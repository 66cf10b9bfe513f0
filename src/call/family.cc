// Which terms a scheme has, and the family that follows from them.
#include "relpos/family.h"

#include <algorithm>
#include <array>

#include "binding/bound_part.h"
#include "values/term_kinds.h"

namespace relpos {
namespace {

constexpr int64_t kExampleSize = 8;

// The first family of which a scheme has a term; the last one has no terms of its own.
struct Kinds {
  Family family;
  std::vector<std::string> terms;
};

const std::array<Kinds, 5>& kinds() {
  static const std::array<Kinds, 5> all{{
      {{"rotation", "queries and keys turn by their positions"}, {"rotation"}},
      {{"rows", "rows of a table meet queries or keys, or join the values"},
       {"row table", "column table", "pair rows", "value table"}},
      {{"bias", "a number joins the score of each pair"},
       {"distance bias", "key bias", "pair bias"}},
      {{"sink", "a score without a value joins the softmax of each row"}, {"sink"}},
      {{"other", "none of these"}, {}},
  }};
  return all;
}

}  // namespace

OptionValues example_options(const Scheme& scheme) {
  OptionValues options;
  for (const OptionSpec& spec : scheme.options) {
    if (!spec.required) continue;
    if (!spec.choices.empty()) {
      options.emplace_back(spec.name, spec.choices.front());
    } else if (spec.type == OptionType::kValues) {
      options.emplace_back(spec.name, std::vector<double>{static_cast<double>(kExampleSize)});
    } else {
      options.emplace_back(spec.name, kExampleSize);
    }
  }
  return options;
}

std::vector<std::string> term_kinds(const Part& part) {
  const BoundPart bound(part);
  std::vector<std::string> names;
  for_each_kind([&](const char* name, auto list, auto) {
    if (!(bound.terms().*list).empty()) names.emplace_back(name);
  });
  return names;
}

bool reads_positions(const Part& part) {
  return part.recipe->terms.size() > part.recipe->positionless;
}

const std::vector<Family>& families() {
  static const std::vector<Family> all = [] {
    std::vector<Family> list;
    for (const Kinds& entry : kinds()) list.push_back(entry.family);
    return list;
  }();
  return all;
}

const Family& family(const Part& part) {
  const std::vector<std::string> terms = term_kinds(part);
  for (size_t n = 0; n < kinds().size(); ++n) {
    const std::vector<std::string>& wanted = kinds()[n].terms;
    if (std::ranges::find_first_of(terms, wanted) != terms.end()) return families()[n];
  }
  return families().back();
}

const Family& family(const Scheme& scheme) {
  return family(make_part(scheme, example_options(scheme)));
}

}  // namespace relpos
