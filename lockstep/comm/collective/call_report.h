// A CallReport is what ranks say about their calls once these are known to differ: the text of the name (a signature
// has only its hash), and what failed on a rank before, which is often the reason. Values; pure.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "lockstep/base/bytes.h"

namespace lockstep::internal {

struct CallReport {
  std::string name = {};     // of the data; empty: nameless
  std::string failure = {};  // see FailureNote; empty: nothing
};

// At most kCallReportBytes; longer texts are cut. Bytes after it do not count.
inline constexpr std::size_t kCallReportBytes = 1024;
Bytes encode(const CallReport& report);
// Takes any bytes: see printable().
CallReport decode_call_report(ByteView bytes);

// Another rank's text, up to its end or a zero, with everything that cannot be printed replaced.
std::string printable(std::span<const char> field);

}  // namespace lockstep::internal
