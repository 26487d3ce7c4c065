#include "lockstep/comm/rendezvous/registration.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/base/log.h"
#include "lockstep/comm/health/peer_failure.h"
#include "lockstep/comm/rendezvous/registration_record.h"
#include "lockstep/comm/store/store_text.h"

namespace lockstep::internal {
namespace {

constexpr const char* kWorldSizeKey = "world_size";
constexpr const char* kMembersKey = "members";  // of a complete world
constexpr const char* kOverKey = "over";  // a rank that was started again has gone on to the next part of the store
// How long the store may take to notice that a process on another host has ended.
constexpr Duration kHolderPatience = std::chrono::seconds(2);

std::string registration_key(int rank) { return fmt::format("registration/{}", rank); }
std::string registrations_key(int rank) { return fmt::format("registrations/{}", rank); }
std::string ready_key(int rank) { return fmt::format("ready/{}", rank); }

// Distinguishes this process from a later one with the same pid.
const Bytes& process_nonce() {
  static const Bytes nonce(reinterpret_cast<const char*>(Token::generate().bytes().data()), 8);
  return nonce;
}

void check_same(JoinWatch& watch, const Registration& one, const Registration& other) {
  const bool has_size = one.size == other.size;
  if (has_size && one.host_timeout == other.host_timeout) return;
  if (other.member.rank < one.member.rank) return check_same(watch, other, one);  // so that all ranks report the same
  const auto value = [&](const Registration& each) {
    return has_size ? fmt::format("{} s", seconds(each.host_timeout)) : std::to_string(each.size);
  };
  const std::string text =
      fmt::format("the ranks disagree about the {}: {} was started with {}, {} with {}; start all with the same value",
                  has_size ? "host timeout (LOCKSTEP_HOST_TIMEOUT)" : "world size", to_string(one.member), value(one),
                  to_string(other.member), value(other));
  const Error error(ErrorKind::invalid_argument, text, {.peer = other.member.rank});
  watch.give_up(error);
  throw error;
}

bool is_same_process(const Registration& holder, const Member& me) {
  return holder.process == process_nonce() && holder.member.pid == me.pid && holder.member.host == me.host;
}

// Whether a process that holds this rank has ended, or the world with it.
bool has_ended(JoinWatch& watch, const Member& holder, const Member& me, Deadline deadline) {
  const bool is_local = holder.node_id == me.node_id;
  if (is_local && holder.process_start != 0 && ProcessWatch(holder.pid, holder.process_start).has_ended()) {
    watch.give_up(peer_lost({.peer = holder.rank, .name = to_string(holder)}, me.rank));
    return true;
  }
  const Deadline patience = std::min(deadline, Deadline::after(is_local ? Duration::zero() : kHolderPatience));
  for (;;) {
    if (watch.failure(deadline)) return true;
    if (patience.expired()) return false;
    std::this_thread::sleep_for(std::min<Duration>(watch.period(), patience.remaining()));
  }
}

// By rank, of a complete world; empty before.
std::vector<Registration> met(Store& store, Deadline deadline) {
  if (!store.check({kMembersKey}, deadline)) return {};
  return decode_members(store.get(kMembersKey, deadline));
}

// False if the world is over.
bool take_rank(Store& store, JoinWatch& watch, const Member& me, const Bytes& mine, Deadline deadline) {
  const auto place = static_cast<std::size_t>(me.rank);
  if (store.check({kOverKey}, deadline)) return false;
  // Checked before and after: registrations are removed once a world is complete.
  std::vector<Registration> members = met(store, deadline);
  const bool is_late = !members.empty();
  if (is_late && (place >= members.size() || is_same_process(members[place], me))) return false;
  Registration holder =
      is_late ? members[place]
              : decode_registration(store.compare_set(registration_key(me.rank), "", mine, deadline), me.rank);
  if (!is_late && is_same_process(holder, me)) {
    members = met(store, deadline);
    if (members.empty() || (place < members.size() && is_same_process(members[place], me))) {
      return store.add(registrations_key(me.rank), 1, deadline) == 1;
    }
    store.remove(registration_key(me.rank), deadline);
    if (place >= members.size()) return false;
    holder = members[place];
  }
  if (has_ended(watch, holder.member, me, deadline)) {
    store.set(kOverKey, "", deadline);
    return false;
  }
  throw Error(ErrorKind::invalid_argument,
              fmt::format("rank {} is taken: host {}, pid {} has joined with it, and so has host {}, pid {}; give each "
                          "process a different rank",
                          me.rank, holder.member.host, holder.member.pid, me.host, me.pid),
              {.rank = me.rank, .operation = "join"});
}

Error missing_ranks(const Member& me, int size, const std::vector<int>& ranks, Duration waited) {
  return Error(
      ErrorKind::timeout,
      fmt::format("rank {} waited {:.1f} s for all {} ranks to join: {} did not join. Were they started, with the "
                  "same address, job id and world size?",
                  me.rank, seconds(waited), size, list_ranks(ranks)),
      {.rank = me.rank, .peer = ranks.front(), .operation = "join", .elapsed_seconds = seconds(waited)});
}

std::vector<int> ranks_of(const std::vector<std::string>& keys, const std::vector<std::string>& some) {
  std::vector<int> ranks;
  for (const std::string& key : some) {
    ranks.push_back(static_cast<int>(std::find(keys.begin(), keys.end(), key) - keys.begin()));
  }
  return ranks;
}

// Of size 0 if it has been removed meanwhile.
Registration registration_of(Store& store, int rank) {
  try {
    return decode_registration(store.get(registration_key(rank), Deadline::after(kLastLook)), rank);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::timeout) throw;
    return {};
  }
}

// By rank. Ranks that are there are watched while others are missing.
std::vector<Registration> wait_for_registrations(Store& store, JoinWatch& watch, const Member& me, int size,
                                                 Deadline deadline, Duration notice_after) {
  const TimePoint start = steady_clock().now();
  LongWait long_wait(notice_after);
  std::vector<Registration> registrations(static_cast<std::size_t>(size));
  std::vector<std::string> keys;
  for (int rank = 0; rank < size; ++rank) keys.push_back(registration_key(rank));
  for (std::vector<std::string> missing = keys;;) {
    const std::vector<std::string> before =
        std::exchange(missing, store.wait(missing, std::min(deadline, Deadline::after(watch.period()))));
    for (const int rank : ranks_of(keys, before)) {
      if (std::ranges::find(missing, registration_key(rank)) != missing.end()) continue;
      Registration& registration = registrations[static_cast<std::size_t>(rank)];
      registration = registration_of(store, rank);
      if (registration.size == 0) missing.push_back(registration_key(rank));
      watch.add(process_of(registration.member));
    }
    const bool is_late = deadline.expired();
    const Deadline look = std::max(deadline, Deadline::after(kLastLook));
    is_late || missing.empty() ? watch.look(look) : watch.check(deadline);
    if (missing.empty()) return registrations;
    // Others may have gone on and removed their registrations.
    if (std::vector<Registration> all = met(store, look); !all.empty()) return all;
    const Duration waited = steady_clock().now() - start;
    if (const auto due = long_wait.due()) {
      log_warning(fmt::format("rank {} has waited {:.0f} s for {} of {} to join", me.rank, seconds(*due),
                              list_ranks(ranks_of(keys, missing)), size));
    }
    if (is_late) throw missing_ranks(me, size, ranks_of(keys, missing), waited);
  }
}

std::vector<Member> meet_all(Store& store, JoinWatch& watch, const Member& me, const Bytes& mine, int size,
                             Deadline deadline, Duration notice_after) {
  // The first registration decides early, while ranks are missing; in the end every registration is checked, since the
  // world may be complete for one size before all ranks of another have come.
  check_same(watch, decode_registration(store.compare_set(kWorldSizeKey, "", mine, deadline), -1),
             decode_registration(mine, me.rank));
  const std::vector<Registration> registrations =
      wait_for_registrations(store, watch, me, size, deadline, notice_after);
  std::vector<Member> members;
  for (const Registration& registration : registrations) {
    check_same(watch, registration, decode_registration(mine, me.rank));
    members.push_back(registration.member);
  }
  if (me.rank == 0) store.set(kMembersKey, encode_members(registrations), deadline);
  store.set(ready_key(me.rank), "", deadline);
  return members;
}

}  // namespace

std::optional<std::vector<Member>> register_rank(Store& store, const Member& me, int size, Deadline deadline,
                                                 const RegistrationOptions& how) {
  JoinWatch words(std::shared_ptr<Store>(std::shared_ptr<Store>(), &store), process_of(me), size, "joining");
  JoinWatch& watch = how.watch != nullptr ? *how.watch : words;
  const Bytes mine = encode(Registration{me, size, process_nonce(), how.host_timeout});
  if (!take_rank(store, watch, me, mine, deadline)) return std::nullopt;
  try {
    return meet_all(store, watch, me, mine, size, deadline, how.notice_after);
  } catch (const Error& error) {
    // Ranks that come later must not take this rank's registration for a rank that is there.
    watch.give_up(error_for_peers(to_string(me), me.rank, error));
    throw;
  }
}

void wait_for_all_registered(Store& store, const Member& me, int size, Deadline deadline,
                             const RegistrationOptions& how) {
  const TimePoint start = steady_clock().now();
  std::vector<std::string> keys;
  for (int rank = 0; rank < size; ++rank) keys.push_back(ready_key(rank));
  std::vector<std::string> missing = keys;
  for (;;) {
    const Deadline look = how.watch == nullptr ? deadline : Deadline::after(how.watch->period());
    missing = store.wait(missing, std::min(deadline, look));
    if (missing.empty()) return;
    if (how.watch != nullptr) how.watch->check(deadline);
    if (deadline.expired()) throw missing_ranks(me, size, ranks_of(keys, missing), steady_clock().now() - start);
  }
}

void clear_registration(Store& store, int rank, int size, Deadline deadline) {
  // Until rank 0 has written the members, another process could take the place of a removed registration.
  if (!store.wait({kMembersKey}, deadline).empty()) return;
  store.remove(registration_key(rank), deadline);
  store.remove(registrations_key(rank), deadline);
  if (rank != 0) return;
  store.remove(kWorldSizeKey, deadline);
  for (int each = 0; each < size; ++each) store.remove(ready_key(each), deadline);
}

}  // namespace lockstep::internal
