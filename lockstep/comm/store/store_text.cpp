#include "lockstep/comm/store/store_text.h"

#include <algorithm>

#include "lockstep/base/format.h"
#include "lockstep/comm/store/store.h"

namespace lockstep::internal {
namespace {

constexpr std::size_t kShownKeyBytes = 80;
constexpr std::size_t kShownKeys = 8;
constexpr std::size_t kShownRanks = 8;

}  // namespace

std::string quote_key(std::string_view key) {
  std::string text = "'";
  for (const char c : key.substr(0, kShownKeyBytes)) {
    const bool printable = c >= ' ' && c <= '~';
    text += printable ? std::string(1, c) : fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
  }
  return text + (key.size() > kShownKeyBytes ? "...'" : "'");
}

std::string list_keys(std::span<const std::string> keys) {
  std::string text;
  const std::size_t shown = std::min(keys.size(), kShownKeys);
  for (std::size_t i = 0; i < shown; ++i) text += (i == 0 ? "" : ", ") + quote_key(keys[i]);
  if (keys.size() > shown) text += fmt::format(" and {} more", keys.size() - shown);
  return text;
}

std::string list_ranks(const std::vector<int>& ranks) {
  if (ranks.size() == 1) return fmt::format("rank {}", ranks.front());
  if (ranks.size() > kShownRanks) {
    const std::vector<int> shown(ranks.begin(), ranks.begin() + kShownRanks);
    return fmt::format("ranks {} and {} more", fmt::join(shown, ", "), ranks.size() - kShownRanks);
  }
  if (ranks.empty()) return "no ranks";
  return fmt::format("ranks {} and {}", fmt::join(ranks.begin(), ranks.end() - 1, ", "), ranks.back());
}

Error missing_keys_error(std::string_view operation, std::span<const std::string> keys, Duration waited) {
  return Error(ErrorKind::timeout,
               fmt::format("store {} timed out after {:.1f} s: no process has set {}", operation, seconds(waited),
                           list_keys(keys)),
               {.operation = std::string(operation), .elapsed_seconds = seconds(waited)});
}

void check_store_key(std::string_view key) {
  if (!key.empty() && key.size() <= kMaxStoreKeyBytes) return;
  throw Error(ErrorKind::invalid_argument, fmt::format("a store key must have 1 to {} bytes; this one has {}: {}",
                                                       kMaxStoreKeyBytes, key.size(), quote_key(key)));
}

void check_store_value(std::string_view key, std::string_view value) {
  if (value.size() <= kMaxStoreValueBytes) return;
  throw Error(ErrorKind::invalid_argument, fmt::format("the value of store key {} has {} bytes; the limit is {}",
                                                       quote_key(key), value.size(), kMaxStoreValueBytes));
}

}  // namespace lockstep::internal
