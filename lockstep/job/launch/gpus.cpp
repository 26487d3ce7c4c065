#include "lockstep/job/launch/gpus.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <optional>
#include <set>
#include <sstream>
#include <string_view>
#include <system_error>

namespace lockstep::internal {
namespace {

// As CUDA reads it: "2ampere" is 2; nothing for what begins otherwise.
std::optional<int> number_at_begin(std::string_view text) {
  text.remove_prefix(std::min(text.find_first_not_of(" +"), text.size()));
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && value >= 0 ? std::optional(value) : std::nullopt;
}

}  // namespace

int present_gpus(const std::string& devices) {
  constexpr std::string_view kName = "nvidia";
  int count = 0;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(devices, error), end; !error && entry != end; entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (!name.starts_with(kName) || name.size() == kName.size()) continue;
    if (name.find_first_not_of("0123456789", kName.size()) == std::string::npos) ++count;
  }
  return count;
}

int visible_gpus(int present, const char* visible_devices) {
  if (visible_devices == nullptr) return present;
  const std::string_view all(visible_devices);
  if (all.starts_with("MIG-")) return std::min(present, 1);
  const bool has_names = all.starts_with("GPU-");
  std::set<std::string> seen;
  std::istringstream list{std::string(all)};
  for (std::string each; std::getline(list, each, ',');) {
    if (has_names && !each.starts_with("GPU-")) break;
    if (!has_names) {
      const auto number = number_at_begin(each);
      if (!number || *number >= present) break;
      each = std::to_string(*number);
    }
    if (!seen.insert(each).second) return 0;
  }
  return std::min(present, static_cast<int>(seen.size()));
}

}  // namespace lockstep::internal
