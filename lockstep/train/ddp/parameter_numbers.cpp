#include "lockstep/train/ddp/parameter_numbers.h"

namespace lockstep::internal {

std::string name_with_numbers(std::string_view what, const std::vector<std::size_t>& numbers) {
  std::string name(what);
  name += " of parameters";
  for (std::size_t first = 0; first < numbers.size();) {
    std::size_t last = first;
    while (last + 1 < numbers.size() && numbers[last + 1] == numbers[last] + 1) ++last;
    name += " " + std::to_string(numbers[first]);
    if (last != first) name += "-" + std::to_string(numbers[last]);
    first = last + 1;
  }
  return name;
}

}  // namespace lockstep::internal
