#include "lockstep/comm/transport/shared_arena.h"

#include <fcntl.h>
#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <limits>
#include <utility>

#include "lockstep/base/checked.h"
#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/base/log.h"
#include "lockstep/base/private_fd.h"
#include "lockstep/comm/health/peer_failure.h"
#include "lockstep/comm/health/wait_reports.h"
#include "lockstep/comm/transport/arena_handle.h"
#include "lockstep/comm/transport/arena_size.h"

namespace lockstep::internal {
namespace {

// The first character of a report that a member cannot take part: the system refused, or something is damaged.
constexpr char kFailed = '!';
constexpr char kDamaged = '?';
constexpr char kDeath = '#';   // before the number of a member that the first one has seen die
constexpr char kNoRoom = '~';  // before the number of a member that has too few addresses, and its report
constexpr Duration kReportTimeout = std::chrono::seconds(1);
constexpr Duration kMemberLook = std::chrono::milliseconds(50);  // how often a member that waits looks for dead ones

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

Error as_reported(const SharedArenaSpec& spec, int who, const std::string& report) {
  return Error(report.starts_with(kDamaged) ? ErrorKind::corrupt_data : ErrorKind::internal, report.substr(1),
               {.rank = spec.rank, .peer = who});
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
    throw Error(ErrorKind::corrupt_data, "the shared memory of " + spec.members[0].name +
                                             " was made for another group or by another version of Lockstep");
  }
  return mapping;
}

// The key of the handle, and those under which the others say whether they could map the memory.
std::string key_of(const SharedArenaSpec& spec) { return "arena/" + spec.name; }
std::string report_key(const SharedArenaSpec& spec, int rank) { return fmt::format("{}/{}", key_of(spec), rank); }
// Under which a member says how large a segment may be for it, or why it can have none.
std::string room_key(const SharedArenaSpec& spec, int rank) { return report_key(spec, rank) + "/room"; }

bool is_size_open(const SharedArenaSpec& spec) { return spec.heaps == nullptr && spec.options.segment_bytes == 0; }

std::string own_room(const SharedArenaSpec& spec) {
  const int ranks = static_cast<int>(spec.members.size());
  const ArenaRoom room = room_of_this_process(ranks);
  const std::size_t segment = segment_bytes_for(room, ranks);
  return segment == 0 ? kFailed + shortage_of(room, ranks) : std::to_string(segment);
}

Mapping create(const SharedArenaSpec& spec, std::size_t segment, Store& store, Deadline deadline) {
  const int ranks = static_cast<int>(spec.members.size());
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
    const Deadline look = Deadline::after(dead ? Duration::zero() : kMemberLook);
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
void check_rooms(const SharedArenaSpec& spec, const std::string& text) {
  if (text.empty() || text.front() != kNoRoom) return;
  const Origin origin("report of a rank without addresses", 0);
  const std::size_t end = std::min(text.find(' '), text.size());
  const std::int64_t who = checked_decimal(std::string_view(text).substr(1, end - 1), "rank", origin);
  const int size = static_cast<int>(spec.members.size());
  throw as_reported(spec, checked_rank(who, size, origin), text.substr(std::min(end + 1, text.size())));
}

void check_deaths(const SharedArenaSpec& spec, const std::string& text) {
  if (text.empty() || text.front() != kDeath) return;
  const Origin origin("report of a dead rank", 0);
  const std::int64_t who = checked_decimal(std::string_view(text).substr(1), "rank", origin);
  throw died(spec, checked_rank(who, static_cast<int>(spec.members.size()), origin));
}

Mapping attach_or_report(const SharedArenaSpec& spec, const LocalPeer& creator, Store& store, Deadline deadline) {
  if (is_size_open(spec)) store.set(room_key(spec, spec.rank), own_room(spec), deadline);
  const std::string text = await_handle(spec, creator, store, deadline);
  check_deaths(spec, text);
  check_rooms(spec, text);
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

// What all other members, by rank, have put under their keys; empty for this one.
std::vector<std::string> await_others(const SharedArenaSpec& spec, const std::vector<LocalPeer>& peers,
                                      std::string (*key)(const SharedArenaSpec&, int), Store& store,
                                      Deadline deadline) {
  std::vector<std::string> missing;
  const auto is_missing = [&](int rank) { return std::ranges::find(missing, key(spec, rank)) != missing.end(); };
  const int size = static_cast<int>(peers.size());
  for (int rank = 1; rank < size; ++rank) missing.push_back(key(spec, rank));
  for (LongWait long_wait; !missing.empty();) {
    missing = store.wait(missing, std::min(deadline, Deadline::after(kMemberLook)));
    for (int rank = 1; rank < size; ++rank) {
      const bool dead = peers[static_cast<std::size_t>(rank)].process.has_ended();
      if (is_missing(rank) && dead && !store.check({key(spec, rank)}, deadline)) throw died(spec, rank);
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
      throw Error(
          ErrorKind::timeout,
          fmt::format("{1} did not map the shared memory of group {0} before the deadline; are they still running?",
                      spec.name, who),
          {.rank = spec.rank, .peer = first});
    }
  }
  std::vector<std::string> values(static_cast<std::size_t>(size));
  for (int rank = 1; rank < size; ++rank) values[static_cast<std::size_t>(rank)] = store.get(key(spec, rank), deadline);
  return values;
}

// Only if no member failed: one that failed may have ended, and those who see that read its report (why_died).
void forget(const SharedArenaSpec& spec, std::string (*key)(const SharedArenaSpec&, int), Store& store,
            Deadline deadline) {
  for (int rank = 1; std::cmp_less(rank, spec.members.size()); ++rank) store.remove(key(spec, rank), deadline);
}

// The first member joins the arena only when it knows that all others can, so that no member believes in a group that
// another one has given up.
void await_reports(const SharedArenaSpec& spec, const std::vector<LocalPeer>& peers,
                   const std::shared_ptr<Mapping>& mapping, Store& store, Deadline deadline) {
  try {
    const std::vector<std::string> reports = await_others(spec, peers, &report_key, store, deadline);
    const auto failed = std::ranges::find_if(reports, [](const std::string& report) { return !report.empty(); });
    if (failed != reports.end()) throw cannot_map(spec, static_cast<int>(failed - reports.begin()), *failed);
    forget(spec, &report_key, store, deadline);
  } catch (const Error& error) {
    give_up(spec, mapping, error);
  }
}

// What a member's room is; Error that names it if that is too little.
std::size_t segment_of(const SharedArenaSpec& spec, int rank, const std::string& room) {
  if (room.starts_with(kFailed)) throw cannot_map(spec, rank, room);
  const Origin origin("room for shared memory", rank);
  return checked_between<std::size_t>(checked_decimal(room, "size of a segment", origin), kMinSegmentBytes,
                                      std::numeric_limits<std::int64_t>::max(), "size of a segment", origin);
}

// The largest segment that all members can map.
std::size_t agreed_segment(const SharedArenaSpec& spec, const std::vector<LocalPeer>& peers, Store& store,
                           Deadline deadline) {
  if (spec.heaps != nullptr) return whole_segment_bytes(kStagingAreaBytes);
  if (!is_size_open(spec)) return whole_segment_bytes(spec.options.segment_bytes);
  int rank = 0;
  try {
    std::size_t least = segment_of(spec, rank, own_room(spec));  // without it, there is nothing to wait for
    const std::vector<std::string> rooms = await_others(spec, peers, &room_key, store, deadline);
    for (rank = 1; std::cmp_less(rank, rooms.size()); ++rank) {
      least = std::min(least, segment_of(spec, rank, rooms[static_cast<std::size_t>(rank)]));
    }
    forget(spec, &room_key, store, deadline);
    return least;
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::internal && error.kind() != ErrorKind::corrupt_data) throw;
    const char how = error.kind() == ErrorKind::internal ? kFailed : kDamaged;
    store.set(key_of(spec), fmt::format("{}{} {}{}", kNoRoom, rank, how, error.what()), deadline);
    throw;
  }
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
      mapping = std::make_shared<Mapping>(create(spec, agreed_segment(spec, *peers, store, deadline), store, deadline));
      await_reports(spec, *peers, mapping, store, deadline);
    } catch (const Error& error) {
      if (error.kind() == ErrorKind::peer_lost && error.detail().peer > 0) tell_death(spec, error.detail().peer, store);
      throw;
    }
  } else {
    peers = watch(spec);
    mapping = std::make_shared<Mapping>(attach_or_report(spec, peers->front(), store, deadline));
  }
  auto made = std::make_unique<Arena>(std::move(mapping), spec.rank, std::move(peers), "shared memory", spec.heaps);
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
      return Error(
          ErrorKind::timeout,
          fmt::format("{1} did not map the shared memory of group {0} before the deadline; are they still running?",
                      spec.name, who),
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
