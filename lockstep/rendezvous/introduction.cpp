#include "lockstep/rendezvous/introduction.h"

#include <algorithm>

#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/rendezvous/claim.h"
#include "lockstep/store/functions.h"

namespace lockstep {
namespace {

constexpr const char* kWorldSizeKey = "world_size";
constexpr const char* kFailureKey = "failure";
// How often a waiting rank looks whether the introduction has failed.
constexpr Duration kFailureLook = std::chrono::milliseconds(200);

std::string claim_key(int rank) { return fmt::format("claim/{}", rank); }
std::string introduced_key(int rank) { return fmt::format("introduced/{}", rank); }

// Tells this process from a later one with the same pid.
const Bytes& process_nonce() {
  static const Bytes nonce(reinterpret_cast<const char*>(Token::generate().bytes().data()), 8);
  return nonce;
}

// Lets every rank that waits in this world, or comes to it later, throw Error{kind} with this text.
void leave_failure(Store& store, ErrorKind kind, const std::string& text) {
  try {
    store.compare_set(kFailureKey, "", encode_failure(kind, text), Deadline::after(kFailureLook));
  } catch (const Error&) {  // the store is gone, and with it those who could read this
  }
}

void throw_failure_if_any(Store& store, Deadline deadline) {
  if (!store.check({kFailureKey}, deadline)) return;
  throw decode_failure(store.get(kFailureKey, deadline));
}

void check_same_size(Store& store, const Claim& one, const Claim& other) {
  if (one.size == other.size) return;
  if (other.member.rank < one.member.rank) return check_same_size(store, other, one);  // so that all say the same
  const std::string text = fmt::format(
      "the ranks disagree about the world size: {} was started with {}, {} with {}; start all with the same value",
      to_string(one.member), one.size, to_string(other.member), other.size);
  leave_failure(store, ErrorKind::invalid_argument, text);
  throw Error(ErrorKind::invalid_argument, text);
}

// False if this process has held the rank before.
bool claim_rank(Store& store, const Member& me, const Bytes& mine, Deadline deadline) {
  const Claim holder = decode_claim(store.compare_set(claim_key(me.rank), "", mine, deadline), me.rank);
  const bool same_process =
      holder.process == process_nonce() && holder.member.pid == me.pid && holder.member.host == me.host;
  if (same_process) return store.add(fmt::format("claims/{}", me.rank), 1, deadline) == 1;
  throw Error(ErrorKind::invalid_argument,
              fmt::format("rank {} is taken: host {}, pid {} holds it, and host {}, pid {} claims it too; give every "
                          "process a rank of its own",
                          me.rank, holder.member.host, holder.member.pid, me.host, me.pid),
              {.rank = me.rank, .operation = "join"});
}

Error missing_ranks(const Member& me, int size, const std::vector<std::string>& keys,
                    const std::vector<std::string>& missing, Duration waited) {
  std::vector<int> ranks;
  for (const std::string& key : missing) {
    ranks.push_back(static_cast<int>(std::find(keys.begin(), keys.end(), key) - keys.begin()));
  }
  return Error(
      ErrorKind::timeout,
      fmt::format("rank {} waited {:.1f} s for all {} ranks to join: {} did not come. Were they started, with the "
                  "same address, job id and world size?",
                  me.rank, seconds(waited), size, list_ranks(ranks)),
      {.rank = me.rank, .peer = ranks.front(), .operation = "join", .elapsed_seconds = seconds(waited)});
}

void wait_for_claims(Store& store, const Member& me, int size, Deadline deadline) {
  const TimePoint start = steady_clock().now();
  std::vector<std::string> keys;
  for (int rank = 0; rank < size; ++rank) keys.push_back(claim_key(rank));
  for (;;) {
    const std::vector<std::string> missing = store.wait(keys, std::min(deadline, Deadline::after(kFailureLook)));
    throw_failure_if_any(store, std::max(deadline, Deadline::after(kFailureLook)));
    if (missing.empty()) return;
    if (!deadline.expired()) continue;
    const Error error = missing_ranks(me, size, keys, missing, steady_clock().now() - start);
    // Whoever comes later must not take this rank's claim for a rank that is there.
    leave_failure(store, ErrorKind::aborted, fmt::format("{} has given up: {}", to_string(me), error.what()));
    throw error;
  }
}

}  // namespace

std::string to_string(const Member& member) {
  return fmt::format("rank {} (host {}, pid {})", member.rank, member.host, member.pid);
}

std::optional<std::vector<Member>> introduce(Store& store, const Member& me, int size, Deadline deadline) {
  const Bytes mine = encode(Claim{me, size, process_nonce()});
  if (!claim_rank(store, me, mine, deadline)) return std::nullopt;
  // The first claim decides early, while ranks are missing; in the end every claim is looked at, since the world may be
  // full for one size before all ranks of another have come.
  check_same_size(store, decode_claim(store.compare_set(kWorldSizeKey, "", mine, deadline), -1),
                  decode_claim(mine, me.rank));
  wait_for_claims(store, me, size, deadline);
  std::vector<Member> members;
  for (int rank = 0; rank < size; ++rank) {
    const Claim claim = decode_claim(store.get(claim_key(rank), deadline), rank);
    check_same_size(store, claim, decode_claim(mine, me.rank));
    members.push_back(claim.member);
  }
  store.set(introduced_key(me.rank), "", deadline);
  return members;
}

void wait_for_all_introduced(Store& store, const Member& me, int size, Deadline deadline) {
  const TimePoint start = steady_clock().now();
  std::vector<std::string> keys;
  for (int rank = 0; rank < size; ++rank) keys.push_back(introduced_key(rank));
  const std::vector<std::string> missing = store.wait(keys, deadline);
  if (!missing.empty()) throw missing_ranks(me, size, keys, missing, steady_clock().now() - start);
}

}  // namespace lockstep
