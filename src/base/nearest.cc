#include "base/nearest.h"

#include <algorithm>
#include <cctype>

namespace relpos {
namespace {

std::string plain(std::string_view name) {
  std::string text;
  for (char c : name) {
    text += c == '-' ? '_' : static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  return text;
}

// Insertions, deletions, substitutions and swaps of neighbours.
size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::vector<size_t>> cost(a.size() + 1, std::vector<size_t>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); ++i) {
    for (size_t j = 0; j <= b.size(); ++j) {
      if (i == 0 || j == 0) {
        cost[i][j] = i + j;
        continue;
      }
      const size_t change = a[i - 1] == b[j - 1] ? 0 : 1;
      cost[i][j] = std::min({cost[i - 1][j] + 1, cost[i][j - 1] + 1, cost[i - 1][j - 1] + change});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        cost[i][j] = std::min(cost[i][j], cost[i - 2][j - 2] + 1);
      }
    }
  }
  return cost[a.size()][b.size()];
}

}  // namespace

std::string nearest_name(std::string_view given, const std::vector<std::string>& names) {
  constexpr size_t kLongest = 64;
  if (given.empty() || given.size() > kLongest) return "";
  const std::string asked = plain(given);
  size_t best = asked.size() / 3 + 2;
  std::string nearest;
  for (const std::string& name : names) {
    const std::string candidate = plain(name);
    const bool prefix = asked.size() >= 2 && candidate.starts_with(asked);
    const size_t distance =
        std::min(edit_distance(asked, candidate), prefix ? size_t{1} : kLongest);
    if (distance < best && distance < candidate.size()) {
      best = distance;
      nearest = name;
    }
  }
  return nearest;
}

std::string quoted_list(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "'" : ", '") + name + "'";
  return text;
}

std::string suggestion(std::string_view given, const std::vector<std::string>& names) {
  const std::string nearest = nearest_name(given, names);
  if (!nearest.empty()) return "; did you mean '" + nearest + "'?";
  return names.empty() ? "" : "; expected one of " + quoted_list(names);
}

}  // namespace relpos
