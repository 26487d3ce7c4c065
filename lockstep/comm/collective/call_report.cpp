#include "lockstep/comm/collective/call_report.h"

#include <algorithm>

namespace lockstep::internal {
namespace {

constexpr std::size_t kNameBytes = 256;  // the rest is for the failure; both end with a zero

}  // namespace

Bytes encode(const CallReport& report) {
  Bytes bytes = printable(report.name).substr(0, kNameBytes - 1) + '\0';
  return bytes + printable(report.failure).substr(0, kCallReportBytes - kNameBytes - 1) + '\0';
}

CallReport decode_call_report(ByteView bytes) {
  CallReport report{.name = printable(bytes), .failure = {}};
  if (report.name.size() < bytes.size()) report.failure = printable(bytes.substr(report.name.size() + 1));
  return report;
}

std::string printable(std::span<const char> field) {
  std::string text(field.begin(), std::ranges::find(field, '\0'));
  for (char& c : text) {
    const auto code = static_cast<unsigned char>(c);
    if (code < ' ' || code == 0x7f) c = '?';
  }
  return text;
}

}  // namespace lockstep::internal
