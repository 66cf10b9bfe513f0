#include "schemes/common/checks.h"

#include <string_view>

namespace relpos::common {

int64_t size_option(const char* scheme, const OptionMap& options, const char* name, int64_t least) {
  const int64_t size = options.integer(name);
  const std::string_view text = name;
  const bool of_call = text == "heads" || text.ends_with("_dim");
  const int64_t largest = of_call ? kLargestHeads : kLargestSize;
  check_value(size >= least && size <= largest, scheme, ": ", name, ": expected ", least, " to ",
              largest, ", got ", size);
  return size;
}

void check_fits(const char* scheme, const char* option, int64_t made_for, int64_t call_has) {
  check_value(call_has == 0 || call_has == made_for, scheme, ": ", option,
              ": this position was made with ", option, "=", made_for, ", the call has ", call_has,
              "; make the position with ", option, "=", call_has);
}

std::vector<int64_t> table_shape(const char* scheme, const OptionMap& options, int64_t rows,
                                 int64_t columns) {
  std::vector<int64_t> shape = {rows, columns};
  if (options.has("heads")) shape.insert(shape.begin(), size_option(scheme, options, "heads"));
  checked_numel(shape, scheme);
  return shape;
}

void add_into(std::vector<double>& sums, const std::vector<double>& gradient) {
  for (size_t i = 0; i < sums.size(); ++i) sums[i] += gradient[i];
}

}  // namespace relpos::common
