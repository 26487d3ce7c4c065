#include "lockstep/store/functions.h"

#include <algorithm>

#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/store/store_text.h"

namespace lockstep {
namespace {

constexpr std::size_t kShownRanks = 8;

}  // namespace

void wait_or_throw(Store& store, const std::vector<std::string>& keys, Deadline deadline) {
  const TimePoint start = steady_clock().now();
  const std::vector<std::string> missing = store.wait(keys, deadline);
  if (!missing.empty()) throw missing_keys_error("wait", missing, steady_clock().now() - start);
}

std::vector<Bytes> multi_get(Store& store, const std::vector<std::string>& keys, Deadline deadline) {
  wait_or_throw(store, keys, deadline);
  std::vector<Bytes> values;
  values.reserve(keys.size());
  for (const std::string& key : keys) values.push_back(store.get(key, deadline));
  return values;
}

void multi_set(Store& store, const std::vector<std::pair<std::string, Bytes>>& entries, Deadline deadline) {
  for (const auto& [key, value] : entries) store.set(key, value, deadline);
}

void barrier(Store& store, std::string_view name, int rank, int size, Deadline deadline) {
  const TimePoint start = steady_clock().now();
  // Each rank counts its own rounds, so that a fast rank's next round is not taken for this one.
  const std::string base = fmt::format("barrier/{}", name);
  const std::int64_t round = store.add(fmt::format("{}/rounds/{}", base, rank), 1, deadline);
  std::vector<std::string> arrivals;
  for (int i = 0; i < size; ++i) arrivals.push_back(fmt::format("{}/{}/{}", base, round, i));
  store.set(arrivals[static_cast<std::size_t>(rank)], "", deadline);
  const std::vector<std::string> missing = store.wait(arrivals, deadline);
  if (!missing.empty()) {
    std::vector<int> ranks;
    for (const std::string& key : missing) {
      ranks.push_back(static_cast<int>(std::find(arrivals.begin(), arrivals.end(), key) - arrivals.begin()));
    }
    const double waited = seconds(steady_clock().now() - start);
    throw Error(ErrorKind::timeout,
                fmt::format("rank {} waited {:.1f} s at barrier {}: {} of {} did not come", rank, waited,
                            quote_key(name), list_ranks(ranks), size),
                {.rank = rank, .peer = ranks.front(), .operation = "barrier", .elapsed_seconds = waited});
  }
  const std::string left = fmt::format("{}/{}/left", base, round);
  if (store.add(left, 1, deadline) == size) {
    for (const std::string& key : arrivals) store.remove(key, deadline);
    store.remove(left, deadline);
  }
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

}  // namespace lockstep
