// A CallReport is what ranks exchange once they have found that they make different calls: the text of the name (a
// signature has only its hash), and what failed on a rank before, which is often the reason. Values; pure.
#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace lockstep::internal {

struct CallReport {
  std::string name = {};     // of the data; empty: nameless
  std::string failure = {};  // see FailureNote; empty: nothing
};

// Its encoded size; longer texts are cut.
inline constexpr std::size_t kCallReportBytes = 1024;
void encode(const CallReport& account, std::span<std::byte, kCallReportBytes> bytes);
// Takes any bytes: see printable().
CallReport decode_call_report(std::span<const std::byte, kCallReportBytes> bytes);

// Another rank's text, up to its end or a zero, with everything that cannot be printed replaced.
std::string printable(std::span<const char> field);

}  // namespace lockstep::internal
