#include "lockstep/comm/group/transports.h"

#include <algorithm>
#include <mutex>
#include <utility>

#include "lockstep/base/choose_name.h"
#include "lockstep/base/environment.h"
#include "lockstep/base/error.h"
#include "lockstep/base/format.h"

namespace lockstep::internal {
namespace {

struct TransportTable {
  std::mutex mutex;
  // In order of preference. Protected by mutex.
  std::vector<TransportEntry> entries{shared_memory_transport(), tcp_transport()};
};

TransportTable& table_of_transports() {
  static TransportTable& instance = *new TransportTable;  // leaked on purpose: static objects of a program may register
  return instance;
}

std::vector<std::string_view> names_of(const std::vector<TransportEntry>& entries) {
  std::vector<std::string_view> names{kAutomaticTransport};
  for (const TransportEntry& entry : entries) names.push_back(entry.name);
  return names;
}

// All ranks call it and get the same: why one of them cannot use the transport; empty if all can.
std::string agree_on_obstacle(const TransportEntry& entry, const RanksToConnect& ranks) {
  const std::string can = "can";
  const Membership& all = ranks.membership;
  const std::shared_ptr<Store> store = watched_store(all);
  const std::string key = fmt::format("transport {} of {}/", entry.name, ranks.name);
  const std::string first = key + "first", asked = key + "asked", answer = key + "answer", read = key + "read";
  if (const std::string here = entry.obstacle_here(); !here.empty()) {
    const std::string me = to_string(all.members[static_cast<std::size_t>(all.rank)]);
    store->compare_set(first, "", fmt::format("{}: {}", me, here), ranks.deadline);
  }
  if (store->add(asked, 1, ranks.deadline) == all.size) {
    store->set(answer, store->compare_set(first, "", can, ranks.deadline), ranks.deadline);
  }
  if (!store->wait({answer}, ranks.deadline).empty()) {
    throw Error(ErrorKind::timeout,
                fmt::format("timed out on rank {} before all ranks had stated whether they can use the transport {}",
                            all.rank, entry.name),
                {.rank = all.rank});
  }
  std::string text = store->get(answer, ranks.deadline);
  if (store->add(read, 1, ranks.deadline) == all.size) {
    for (const std::string& each : {first, asked, answer, read}) store->remove(each, ranks.deadline);
  }
  return text == can ? "" : text;
}

std::string obstacle_of(const TransportEntry& entry, const RanksToConnect& ranks) {
  std::string obstacle = entry.obstacle ? entry.obstacle(ranks.membership) : "";
  return obstacle.empty() && entry.obstacle_here ? agree_on_obstacle(entry, ranks) : obstacle;
}

[[noreturn]] void refuse_transport(const TransportEntry& entry, const std::string& obstacle) {
  const std::vector<TransportEntry> all = transports();
  std::vector<std::string_view> others = names_of(all);
  std::erase(others, entry.name);
  throw Error(ErrorKind::invalid_argument,
              fmt::format("the transport {} ({}) cannot be used: {}; use {} (LOCKSTEP_TRANSPORT, "
                          "GroupOptions::transport)",
                          entry.name, entry.description, obstacle, alternatives(others)));
}

}  // namespace

std::vector<TransportEntry> transports() {
  TransportTable& all = table_of_transports();
  const std::lock_guard lock(all.mutex);
  return all.entries;
}

void register_transport(TransportEntry entry) {
  TransportTable& all = table_of_transports();
  const std::lock_guard lock(all.mutex);
  const std::vector<std::string_view> taken = names_of(all.entries);
  if (entry.name.empty() || entry.connect == nullptr || std::ranges::find(taken, entry.name) != taken.end()) {
    throw Error(ErrorKind::invalid_argument,
                fmt::format("register_transport: give a function that connects ranks, and a name other than {}; the "
                            "name is '{}'",
                            alternatives(taken), entry.name));
  }
  all.entries.insert(std::ranges::find(all.entries, kTcpTransport, &TransportEntry::name), std::move(entry));
}

std::string choose_transport(std::string_view name) {
  const std::vector<TransportEntry> all = transports();
  if (!name.empty()) return std::string(choose_name("GroupOptions::transport", name, names_of(all)));
  const auto variable = EnvironmentReader().text("LOCKSTEP_TRANSPORT");
  return std::string(variable ? choose_name("LOCKSTEP_TRANSPORT", *variable, names_of(all)) : kAutomaticTransport);
}

std::vector<TransportEntry> candidates(std::string_view transport) {
  std::vector<TransportEntry> entries = transports();
  if (transport != kAutomaticTransport) {
    std::erase_if(entries, [&](const TransportEntry& entry) { return entry.name != transport; });
  }
  return entries;
}

Connected connect_by_transport(RanksToConnect& ranks) {
  const bool is_required = ranks.is_required();
  bool has_failed = false;
  std::string why = is_required ? "as requested" : "the preferred one";
  for (const TransportEntry& entry : candidates(ranks.options.transport)) {
    const std::string obstacle = obstacle_of(entry, ranks);
    if (obstacle.empty()) {
      if (has_failed) ranks.options.transport = entry.name;
      Connected connected = entry.connect(ranks);
      if (connected.engine != nullptr) {
        connected.about =
            fmt::format("transport {}, {}{}{}", entry.name, why, connected.about.empty() ? "" : "; ", connected.about);
        return connected;
      }
      has_failed = true;
    } else if (is_required) {
      refuse_transport(entry, obstacle);
    }
    why = fmt::format("since {} cannot be used: {}", entry.name, obstacle.empty() ? "see the warning" : obstacle);
  }
  throw Error(ErrorKind::internal, fmt::format("no transport connects these ranks, {}", why));
}

}  // namespace lockstep::internal
