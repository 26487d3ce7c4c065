// A CallReport is what ranks tell each other, in words, once they have found that they came with different calls: what
// their signatures only have hashes of, and what failed on a rank before, which is often why. Values; pure.
#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace lockstep {

struct CallReport {
  std::string name = {};     // of the data; empty: nameless
  std::string failure = {};  // see FailureNote; empty: nothing
};

// As it travels; longer texts are cut.
inline constexpr std::size_t kCallReportBytes = 1024;
void encode(const CallReport& account, std::span<std::byte, kCallReportBytes> bytes);
// Takes any bytes; what cannot be printed is replaced.
CallReport decode_call_report(std::span<const std::byte, kCallReportBytes> bytes);

// A text of another rank's, up to its end or zero, with everything that cannot be printed replaced.
std::string printable(std::span<const char> field);

}  // namespace lockstep
