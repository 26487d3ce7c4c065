#include "lockstep/comm/transport/shared_arena.h"

#include <fcntl.h>
#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "lockstep/base/checked.h"
#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/base/log.h"
#include "lockstep/base/private_fd.h"
#include "lockstep/comm/health/peer_failure.h"
#include "lockstep/comm/health/wait_reports.h"
#include "lockstep/comm/transport/arena_handle.h"

namespace lockstep::internal {
namespace {

// The first character of a report that a member cannot take part: the system refused, or something is damaged.
constexpr char kFailed = '!';
constexpr char kDamaged = '?';
constexpr char kDeath = '#';  // before the number of a member that the first one has seen die
constexpr Duration kReportTimeout = std::chrono::seconds(1);
constexpr Duration kLivenessPeriod =
    std::chrono::milliseconds(50);  // how often a member that waits looks for dead ones

Error died(const SharedArenaSpec& spec, int peer) {
  return peer_lost({.peer = peer,
                    .name = spec.members[static_cast<std::size_t>(peer)].name,
                    .when = "while the group was being set up"},
                   spec.rank);
}

Error cannot_make(const SharedArenaSpec& spec, const std::string& why) {
  return Error(ErrorKind::internal, spec.members[0].name + " could not create shared memory: " + why,
               {.rank = spec.rank, .peer = 0});
}

Error cannot_map(const SharedArenaSpec& spec, int who, const std::string& report) {
  return Error(report.starts_with(kDamaged) ? ErrorKind::corrupt_data : ErrorKind::internal,
               fmt::format("{} cannot map the group's shared memory: {}",
                           spec.members[static_cast<std::size_t>(who)].name, report.substr(1)),
               {.rank = spec.rank, .peer = who});
}

// Members that have ended by now are not an error yet: they may have left because of what the store still tells.
LocalPeerList watch(const SharedArenaSpec& spec) {
  std::vector<LocalPeer> peers(spec.members.size());
  for (std::size_t i = 0; i < peers.size(); ++i) {
    peers[i].name = spec.members[i].name;
    if (static_cast<int>(i) == spec.rank) continue;
    peers[i].process = ProcessWatch(spec.members[i].pid, spec.members[i].start);
  }
  return std::make_shared<const std::vector<LocalPeer>>(std::move(peers));
}

// The memory file is reached through the first member's descriptor table, which the kernel opens to processes of the
// same user only.
Mapping attach(const SharedArenaSpec& spec, const ArenaHandle& handle) {
  const std::string path = fmt::format("/proc/{}/fd/{}", handle.pid, handle.fd);
  UniqueFd fd = PrivateFd::open([&] { return ::open(path.c_str(), O_RDWR | O_CLOEXEC); });
  if (!fd) {
    throw system_error(
        fmt::format("cannot open the shared memory of {} at {} (ranks of one machine must run as the same user)",
                    spec.members[0].name, path),
        errno);
  }
  Mapping mapping = Mapping::attach(std::move(fd), handle.bytes);
  const auto* header = reinterpret_cast<const arena::ArenaHeader*>(mapping.data());
  checked_segment_bytes(*header, mapping.size(), static_cast<int>(spec.members.size()));
  if (header->magic != arena::kMagic || header->version != arena::kVersion || header->nonce != handle.nonce ||
      header->ranks != spec.members.size() || header->generation != spec.options.generation) {
    throw Error(ErrorKind::corrupt_data,
                "the shared memory of " + spec.members[0].name + " belongs to another group or version");
  }
  return mapping;
}

// The key of the handle, and those under which the others say whether they could map the memory.
std::string key_of(const SharedArenaSpec& spec) { return "arena/" + spec.name; }
std::string report_key(const SharedArenaSpec& spec, int rank) { return fmt::format("{}/{}", key_of(spec), rank); }

Mapping create(const SharedArenaSpec& spec, Store& store, Deadline deadline) {
  const int ranks = static_cast<int>(spec.members.size());
  const std::size_t segment = whole_segment_bytes(spec.options.segment_bytes);
  try {
    Mapping mapping = Mapping::create(arena_bytes(ranks, segment));
    ArenaHandle handle{static_cast<int>(::getpid()), mapping.fd(), mapping.size(), 0};
    if (::getrandom(&handle.nonce, sizeof handle.nonce, 0) < 0) throw system_error("getrandom failed", errno);
    format_arena(mapping, ranks, segment, spec.options.generation, handle.nonce);
    store.set(key_of(spec), to_string(handle), deadline);
    return mapping;
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::internal) throw;  // of the store
    store.set(key_of(spec), kFailed + std::string(error.what()), deadline);
    throw cannot_make(spec, error.what());
  }
}

void report(const SharedArenaSpec& spec, Duration waited, const LocalPeer& peer) {
  log_warning(fmt::format("shared memory of group {}: waited {} s for {}, which is {}", spec.name,
                          std::chrono::floor<std::chrono::seconds>(waited).count(), peer.name,
                          to_string(peer.process.state())));
}

// What the first member has put into the store.
std::string await_handle(const SharedArenaSpec& spec, const LocalPeer& creator, Store& store, Deadline deadline) {
  for (LongWait long_wait;;) {
    // Looked at first: what it stored before it died still says why.
    const bool dead = creator.process.has_ended();
    const Deadline look = Deadline::after(dead ? Duration::zero() : kLivenessPeriod);
    if (store.wait({key_of(spec)}, std::min(deadline, look)).empty()) {
      return store.get(key_of(spec), dead ? std::min(deadline, Deadline::after(kReportTimeout)) : deadline);
    }
    if (dead) throw died(spec, 0);
    if (const auto waited = long_wait.due()) report(spec, *waited, creator);
    if (deadline.expired()) {
      throw Error(ErrorKind::timeout,
                  fmt::format("shared memory of group {}: not created by {} before the deadline", spec.name,
                              spec.members[0].name),
                  {.rank = spec.rank, .peer = 0});
    }
  }
}

// A member that leaves because of a death must not be taken for the dead one.
void check_deaths(const SharedArenaSpec& spec, const std::string& text) {
  if (text.empty() || text.front() != kDeath) return;
  const Origin origin("report of a dead rank", 0);
  const std::int64_t who = checked_decimal(std::string_view(text).substr(1), "rank", origin);
  throw died(spec, checked_rank(who, static_cast<int>(spec.members.size()), origin));
}

Mapping attach_or_report(const SharedArenaSpec& spec, const LocalPeer& creator, Store& store, Deadline deadline) {
  const std::string text = await_handle(spec, creator, store, deadline);
  check_deaths(spec, text);
  if (!text.empty() && text.front() == kFailed) {
    throw cannot_make(spec, text.substr(1));
  }
  std::string report;
  try {
    Mapping mapping = attach(spec, parse_arena_handle(text, spec.members[0].pid));
    store.set(report_key(spec, spec.rank), "", deadline);
    return mapping;
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::internal && error.kind() != ErrorKind::corrupt_data) throw;
    if (creator.process.has_ended()) {
      check_deaths(spec, store.get(key_of(spec), std::min(deadline, Deadline::after(kReportTimeout))));
      throw died(spec, 0);
    }
    report = (error.kind() == ErrorKind::corrupt_data ? kDamaged : kFailed) + std::string(error.what());
  }
  store.set(report_key(spec, spec.rank), report, deadline);
  throw cannot_map(spec, spec.rank, report);
}

// A member that could not map the memory may end because of it before the first one has told all.
Error why_died(const SharedArenaSpec& spec, int peer, Store& store, Deadline deadline) {
  try {
    const std::string key = report_key(spec, peer);
    const Deadline limit = std::min(deadline, Deadline::after(kReportTimeout));
    if (store.check({key}, limit)) {
      const std::string report = store.get(key, limit);
      if (!report.empty()) return cannot_map(spec, peer, report);
    }
  } catch (const Error&) {  // the store is gone as well
  }
  return died(spec, peer);
}

// Tells all that wait in the arena, then throws.
[[noreturn]] void give_up(const SharedArenaSpec& spec, const std::shared_ptr<Mapping>& mapping, const Error& error) {
  rings_of(mapping, static_cast<int>(spec.members.size())).control().abort(error);
  throw Error(error);
}

// The first member joins the arena only when it knows that all others can, so that no member believes in a group that
// another one has given up.
void await_reports(const SharedArenaSpec& spec, const std::vector<LocalPeer>& peers,
                   const std::shared_ptr<Mapping>& mapping, Store& store, Deadline deadline) {
  std::vector<std::string> missing;
  const auto is_missing = [&](int rank) { return std::ranges::find(missing, report_key(spec, rank)) != missing.end(); };
  const int size = static_cast<int>(peers.size());
  for (int rank = 1; rank < size; ++rank) missing.push_back(report_key(spec, rank));
  for (LongWait long_wait; !missing.empty();) {
    missing = store.wait(missing, std::min(deadline, Deadline::after(kLivenessPeriod)));
    for (int rank = 1; rank < size; ++rank) {
      const bool dead = peers[static_cast<std::size_t>(rank)].process.has_ended();
      const bool is_silent = is_missing(rank) && dead && !store.check({report_key(spec, rank)}, deadline);
      if (is_silent) give_up(spec, mapping, died(spec, rank));
    }
    const auto waited = missing.empty() ? std::nullopt : long_wait.due();
    for (int rank = 1; waited && rank < size; ++rank) {
      if (is_missing(rank)) report(spec, *waited, peers[static_cast<std::size_t>(rank)]);
    }
    if (deadline.expired() && !missing.empty()) {
      std::string who;
      int first = 0;
      for (int rank = size - 1; rank > 0; --rank) {
        if (!is_missing(rank)) continue;
        who = spec.members[static_cast<std::size_t>(rank)].name + (who.empty() ? "" : ", ") + who;
        first = rank;
      }
      give_up(spec, mapping,
              Error(ErrorKind::timeout,
                    fmt::format("shared memory of group {}: not mapped by {} before the deadline", spec.name, who),
                    {.rank = spec.rank, .peer = first}));
    }
  }
  for (int rank = 1; rank < size; ++rank) {
    const std::string report = store.get(report_key(spec, rank), deadline);
    if (!report.empty()) give_up(spec, mapping, cannot_map(spec, rank, report));
  }
  for (int rank = 1; rank < size; ++rank) store.remove(report_key(spec, rank), deadline);
}

void tell_death(const SharedArenaSpec& spec, int who, Store& store) {
  try {
    store.set(key_of(spec), kDeath + std::to_string(who), Deadline::after(kReportTimeout));
  } catch (const Error&) {  // the store is gone, too
  }
}

}  // namespace

std::unique_ptr<Arena> make_shared_arena(const SharedArenaSpec& spec, Store& store, Deadline deadline) {
  LocalPeerList peers;
  std::shared_ptr<Mapping> mapping;
  if (spec.rank == 0) {
    try {
      peers = watch(spec);
      mapping = std::make_shared<Mapping>(create(spec, store, deadline));
      await_reports(spec, *peers, mapping, store, deadline);
    } catch (const Error& error) {
      if (error.kind() == ErrorKind::peer_lost && error.detail().peer > 0) tell_death(spec, error.detail().peer, store);
      throw;
    }
  } else {
    peers = watch(spec);
    mapping = std::make_shared<Mapping>(attach_or_report(spec, peers->front(), store, deadline));
  }
  auto made = std::make_unique<Arena>(std::move(mapping), spec.rank, std::move(peers), "shared memory");
  made->ring();
  const auto missing = [&](int peer) {
    return made->control(peer).state.load(std::memory_order_acquire) == arena::RankState::absent;
  };
  const auto ready = [&] {
    for (int peer = 0; peer < made->size(); ++peer) {
      if (missing(peer)) return false;
    }
    return true;
  };
  const auto explain = [&](const WaitFailure& stall) {
    ErrorDetail detail;
    detail.rank = spec.rank;
    detail.peer = stall.peer;
    std::string who;
    for (const int peer : stall.missing) who += (who.empty() ? "" : ", ") + made->peer_name(peer);
    if (stall.cause == WaitFailure::Cause::deadline) {
      return Error(ErrorKind::timeout,
                   fmt::format("shared memory of group {}: not mapped by {} before the deadline", spec.name, who),
                   detail);
    }
    return why_died(spec, stall.peer, store, deadline);
  };
  made->await(ready, missing, explain, deadline);
  // No member needs the handle any more, so a failure here does not matter.
  try {
    if (spec.rank == 0) store.remove(key_of(spec), std::min(deadline, Deadline::after(kReportTimeout)));
  } catch (const Error&) {
  }
  return made;
}

}  // namespace lockstep::internal
