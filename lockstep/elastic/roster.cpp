#include "lockstep/elastic/roster.h"

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

std::vector<Seat> assign_seats(std::vector<HostEntry> hosts, int most) {
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
  std::vector<Seat> seats;
  int first_rank = 0;
  for (const HostEntry* host : chairs) {
    seats.push_back({host->number, static_cast<int>(seats.size()), first_rank, host->ranks});
    first_rank += host->ranks;
  }
  return seats;
}

int world_size(const std::vector<Seat>& seats) {
  return seats.empty() ? 0 : seats.back().first_rank + seats.back().ranks;
}

std::string describe_seats(const std::vector<Seat>& seats, const std::vector<HostEntry>& hosts) {
  std::string text;
  for (const Seat& seat : seats) {
    const auto host = std::ranges::find(hosts, seat.host, &HostEntry::number);
    const int last = seat.first_rank + seat.ranks - 1;
    text += fmt::format("{}{}: rank{} {}", text.empty() ? "" : "; ", host == hosts.end() ? "?" : host->name,
                        seat.ranks == 1 ? "" : "s", seat.first_rank);
    if (seat.ranks > 1) text += fmt::format(" to {}", last);
  }
  return text;
}

}  // namespace lockstep::internal
