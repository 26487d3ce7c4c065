#include "lockstep/job/elastic/slots.h"

#include <algorithm>
#include <cstddef>
#include <tuple>

#include "lockstep/base/format.h"

namespace lockstep::internal {
namespace {

using Chairs = std::vector<const HostEntry*>;

bool sit(Chairs& chairs, const std::optional<int>& at, const HostEntry& host) {
  if (!at || *at < 0 || static_cast<std::size_t>(*at) >= chairs.size()) return false;
  const HostEntry*& chair = chairs[static_cast<std::size_t>(*at)];
  if (chair != nullptr) return false;
  chair = &host;
  return true;
}

}  // namespace

std::vector<Slot> assign_slots(std::vector<HostEntry> hosts, int most) {
  std::ranges::sort(hosts, {}, [](const HostEntry& host) {
    return std::make_tuple(!host.node_rank.has_value(), !host.wanted.has_value(), host.number);
  });
  if (hosts.size() > static_cast<std::size_t>(most)) hosts.resize(static_cast<std::size_t>(most));
  Chairs chairs(hosts.size(), nullptr);
  std::vector<const HostEntry*> without;
  std::vector<const HostEntry*> standing;
  for (const HostEntry& host : hosts) {
    if (!sit(chairs, host.wanted, host)) without.push_back(&host);
  }
  for (const HostEntry* host : without) {
    if (!sit(chairs, host->node_rank, *host)) standing.push_back(host);
  }
  std::ranges::sort(standing, {}, [](const HostEntry* host) {
    return std::make_tuple(host->wanted.value_or(host->node_rank.value_or(1 << 30)), host->number);
  });
  auto next = standing.begin();
  for (const HostEntry*& chair : chairs) {
    if (chair == nullptr) chair = *next++;
  }
  std::vector<Slot> slots;
  int first_rank = 0;
  for (const HostEntry* host : chairs) {
    slots.push_back({host->number, static_cast<int>(slots.size()), first_rank, host->ranks});
    first_rank += host->ranks;
  }
  return slots;
}

int world_size(const std::vector<Slot>& slots) {
  return slots.empty() ? 0 : slots.back().first_rank + slots.back().ranks;
}

std::string describe_slots(const std::vector<Slot>& slots, const std::vector<HostEntry>& hosts) {
  std::string text;
  for (const Slot& slot : slots) {
    const auto host = std::ranges::find(hosts, slot.host, &HostEntry::number);
    const int last = slot.first_rank + slot.ranks - 1;
    text += fmt::format("{}{}: rank{} {}", text.empty() ? "" : "; ", host == hosts.end() ? "?" : host->name,
                        slot.ranks == 1 ? "" : "s", slot.first_rank);
    if (slot.ranks > 1) text += fmt::format(" to {}", last);
  }
  return text;
}

}  // namespace lockstep::internal
