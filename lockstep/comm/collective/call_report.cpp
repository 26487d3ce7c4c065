#include "lockstep/comm/collective/call_report.h"

#include <algorithm>
#include <cstring>
#include <string_view>

namespace lockstep::internal {
namespace {

constexpr std::size_t kNameBytes = 256;  // the rest is for the failure; both end with a zero

void put(std::string_view text, std::span<std::byte> field) {
  const std::size_t length = std::min(text.size(), field.size() - 1);
  std::memcpy(field.data(), text.data(), length);
  field[length] = std::byte{0};
}

std::string take(std::span<const std::byte> field) {
  return printable({reinterpret_cast<const char*>(field.data()), field.size()});
}

}  // namespace

void encode(const CallReport& account, std::span<std::byte, kCallReportBytes> bytes) {
  put(account.name, bytes.first(kNameBytes));
  put(account.failure, bytes.subspan(kNameBytes));
}

CallReport decode_call_report(std::span<const std::byte, kCallReportBytes> bytes) {
  return {.name = take(bytes.first(kNameBytes)), .failure = take(bytes.subspan(kNameBytes))};
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
