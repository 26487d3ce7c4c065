#include "tools/seconds_range.h"

#include <string>

#include "lockstep/base/format.h"

namespace lockstep::tools {

CLI::Validator seconds_range(double least, double most) {
  return {[least, most](std::string& text) {
            double value = 0;
            const bool good = CLI::detail::lexical_cast(text, value) && value >= least && value <= most;
            return good ? std::string() : fmt::format("'{}' is not a number of seconds, {} to {}", text, least, most);
          },
          "SECONDS"};
}

}  // namespace lockstep::tools
