// Groups of some of another group's ranks: how all ranks agree on them, and how the members connect.
// ProcessGroup::split() -> part() -> connect.
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/base/hash.h"
#include "lockstep/comm/adapters/backends.h"
#include "lockstep/comm/group/connect.h"
#include "lockstep/comm/group/group_state.h"
#include "lockstep/comm/group/process_group.h"
#include "lockstep/comm/group/transports.h"
#include "lockstep/comm/group/turns.h"
#include "lockstep/comm/health/join_watch.h"
#include "lockstep/comm/store/prefix_store.h"
#include "lockstep/comm/store/store_server.h"

namespace lockstep {

using namespace internal;

namespace {

constexpr Duration kFarewell = std::chrono::seconds(1);

// Called by all ranks of a group before they agree on its `number`-th split: lets those that connect the parts learn
// when one dies or gives up. Null if all share memory or connections, which tell them anyway. Its owner ends it. An
// error here ends the group, since the others would wait.
std::shared_ptr<JoinWatch> watch_parts(const GroupOrigin& origin, const ProcessGroup& group,
                                       const GroupOptions& options, int number, Deadline deadline) {
  const bool is_native = internal::is_native(choose_backend(options.backend));
  const std::vector<TransportEntry> possible = candidates(options.transport);
  const bool by_memory = is_native && possible.front().name == kSharedMemoryTransport;
  if (origin.membership.size == 1 || (by_memory && on_one_node(origin.membership))) return nullptr;
  const bool by_links = is_native && std::ranges::all_of(possible, [](const TransportEntry& each) {
                          return each.name == kSharedMemoryTransport || each.name == kTcpTransport;
                        });
  const GroupConnections& known = origin.connections;
  const bool is_connected = known.collectives.serve(options) && known.messages.serve(options);
  if (by_links && is_connected && (!by_memory || are_apart(origin.membership))) return nullptr;
  const std::string prefix = fmt::format("parts/{:016x}/{}", hash_of(origin.name), number);
  const Member& me = origin.membership.members[static_cast<std::size_t>(group.rank())];
  auto watch = std::make_shared<JoinWatch>(std::make_shared<PrefixStore>(origin.membership.store, prefix),
                                           process_of(me), origin.membership.size, "the group was being split");
  try {
    watch->begin(deadline);
  } catch (const Error& error) {
    group.abort(error.what());
    throw;
  }
  return watch;
}

// "new_group of 0 2". Error{invalid_argument}: not all of them are ranks of a group of `size`, each named once.
std::string name_of_part(const std::vector<int>& ranks, int size) {
  std::string text = "new_group of";
  std::vector<bool> seen(static_cast<std::size_t>(size));
  for (const int each : ranks) {
    if (each < 0 || each >= size) {
      throw Error(ErrorKind::invalid_argument,
                  fmt::format("new_group: {} is not a rank of this group of {} ranks", each, size));
    }
    if (seen[static_cast<std::size_t>(each)]) {
      throw Error(ErrorKind::invalid_argument, fmt::format("new_group: rank {} is listed twice", each));
    }
    seen[static_cast<std::size_t>(each)] = true;
    text += fmt::format(" {}", each);
  }
  return text;
}

// The ranks of one color, ordered by key. colors_and_keys: both numbers of every rank, one rank after the other.
std::vector<int> ranks_of_part(std::span<const std::int64_t> colors_and_keys, std::int64_t color) {
  std::vector<std::pair<std::int64_t, int>> members;  // key and rank
  for (std::size_t at = 0; at < colors_and_keys.size(); at += 2) {
    if (colors_and_keys[at] == color) members.emplace_back(colors_and_keys[at + 1], static_cast<int>(at / 2));
  }
  std::ranges::sort(members);
  std::vector<int> ranks;
  for (const auto& [unused, rank] : members) ranks.push_back(rank);
  return ranks;
}

// Ends the watch, if there is one, of a rank that leaves with `error`. Returns what to throw: the cause, as all name
// it.
Error abandon_parts(const GroupOrigin& origin, JoinWatch* watch, const Error& error) {
  if (watch == nullptr) return error;
  // All ranks of the group learn of a desync.
  Error cause = error.kind() == ErrorKind::desync ? error : watch->cause_of(error);
  watch->end(Deadline::after(kFarewell));
  // The others still have to read it, in a store that may end with this rank.
  if (const auto host = origin.hosted.lock()) host->wait_for_wills(Deadline::after(kFarewell));
  return cause;
}

// Connects the `ranks` of a group, of which `rank` is one, as a group of their own. Only they call it. Ends the watch.
ProcessGroup connect_part(const GroupOrigin& origin, int rank, const std::vector<int>& ranks, const std::string& name,
                          const GroupOptions& options, const std::shared_ptr<JoinWatch>& watch, Deadline deadline) {
  Membership part = origin.membership;
  part.watch = watch;
  part.hosted = origin.hosted.lock();
  part.size = static_cast<int>(ranks.size());
  part.members.clear();
  GroupConnections known = origin.connections;
  known.collectives = known.collectives.of(ranks);
  known.messages = known.messages.of(ranks);
  if (known.heaps != nullptr) known.heaps = std::make_shared<const ArenaHeaps>(known.heaps->of(ranks));
  if (watch != nullptr) watch->set_ranks(ranks);
  for (const int each : ranks) {
    const Member& member = origin.membership.members[static_cast<std::size_t>(each)];
    if (watch != nullptr) watch->add(process_of(member));
    if (each == rank) part.rank = static_cast<int>(part.members.size());
    part.members.push_back(member);
    Member& added = part.members.back();
    if (added.job_rank < 0) added.job_rank = added.rank;
    added.rank = static_cast<int>(part.members.size()) - 1;
  }
  // Hashed, since parts of parts would have names without end.
  const std::string full_name = fmt::format("{}{:016x}", kPartPrefix, hash_of(origin.name + "/" + name));
  try {
    ProcessGroup group = connect_ranks(part, full_name, options, known, deadline);
    if (watch != nullptr) watch->end(deadline);
    return group;
  } catch (const Error& error) {
    throw abandon_parts(origin, watch.get(), error);
  }
}

// Waits for the turn of this thread among those that make parts of a group: its collectives stay together.
Turns::End turn_to_split(const ProcessGroup& group, Turns& turns, Deadline deadline) {
  if (turns.take(deadline)) return Turns::End(turns);
  const std::string text = fmt::format(
      "split timed out on rank {} before its turn came: a group runs its splits one at a time", group.rank());
  group.abort(text);
  throw Error(ErrorKind::timeout, text, {.rank = group.rank(), .operation = "split"});
}

GroupOptions chosen_for_part(const GroupOptions& options, const GroupOptions& of_group) {
  GroupOptions chosen = with_environment(options);
  if (!chosen.device) chosen.device = of_group.device;
  chosen.backend = choose_backend(options.backend);
  return chosen;
}

std::string name_of_split(const GroupOptions& options) {
  return fmt::format("split with {}, connections {}, checksums {}", describe_choices(options), options.connections,
                     options.checksums == Checksums::on ? "on" : "off");
}

}  // namespace

std::optional<ProcessGroup> ProcessGroup::part(int color, int key, const GroupOptions& options, std::string_view call,
                                               Deadline deadline) const {
  if (state_->origin == nullptr) {
    throw Error(ErrorKind::invalid_argument, "split: this group has no store, so it cannot be split");
  }
  std::vector<std::int64_t> mine{color, key}, all(2 * static_cast<std::size_t>(size()));
  const auto tensor_of = [](auto& values) { return at::from_blob(values.data(), std::ssize(values), at::kLong); };
  const int number = state_->splits;
  const auto watch = watch_parts(*state_->origin, *this, options, number, deadline);
  try {
    all_gather_into(tensor_of(all), tensor_of(mine), {.deadline = deadline, .name = call});
  } catch (const Error& error) {
    throw abandon_parts(*state_->origin, watch.get(), error);
  }
  ++state_->splits;
  if (color < 0 && watch != nullptr) watch->end(deadline);
  if (color < 0) return std::nullopt;
  const std::vector<int> ranks = ranks_of_part(all, color);
  const std::string name = std::to_string(number) + "." + std::to_string(color);
  try {
    ProcessGroup group = connect_part(*state_->origin, rank(), ranks, name, options, watch, deadline);
    group.state_->engine->failure_note()->set_whole(state_->engine->failure_note());
    return group;
  } catch (const Error& error) {
    note_failure("split", error.what());  // others may be in the group's next call
    throw;
  }
}

std::optional<ProcessGroup> ProcessGroup::split(int color, int key) const {
  const Deadline deadline = Deadline::after(timeout());
  const Turns::End turn = turn_to_split(*this, state_->turns_to_split, deadline);
  return part(color, key, state_->options, "split", deadline);
}

std::optional<ProcessGroup> ProcessGroup::split(int color, int key, const GroupOptions& options) const {
  const Deadline deadline = Deadline::after(timeout());
  const Turns::End turn = turn_to_split(*this, state_->turns_to_split, deadline);
  const GroupOptions chosen = chosen_for_part(options, state_->options);
  return part(color, key, chosen, name_of_split(chosen), deadline);
}

std::optional<ProcessGroup> ProcessGroup::new_group(const std::vector<int>& ranks) const {
  const Deadline deadline = Deadline::after(timeout());
  const Turns::End turn = turn_to_split(*this, state_->turns_to_split, deadline);
  const int key = key_in(ranks, deadline);
  return part(key < 0 ? -1 : 0, key, state_->options, "split", deadline);
}

std::optional<ProcessGroup> ProcessGroup::new_group(const std::vector<int>& ranks, const GroupOptions& options) const {
  const Deadline deadline = Deadline::after(timeout());
  const Turns::End turn = turn_to_split(*this, state_->turns_to_split, deadline);
  const GroupOptions chosen = chosen_for_part(options, state_->options);
  const int key = key_in(ranks, deadline);
  return part(key < 0 ? -1 : 0, key, chosen, name_of_split(chosen), deadline);
}

// -1 if this rank is none of them. Whoever gives other ranks is told.
int ProcessGroup::key_in(const std::vector<int>& ranks, Deadline deadline) const {
  barrier({.deadline = deadline, .name = name_of_part(ranks, size())});
  const auto found = std::find(ranks.begin(), ranks.end(), rank());
  return found == ranks.end() ? -1 : static_cast<int>(found - ranks.begin());
}

}  // namespace lockstep
