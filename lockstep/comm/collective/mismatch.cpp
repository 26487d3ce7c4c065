#include "lockstep/comm/collective/mismatch.h"

#include <algorithm>
#include <utility>

#include "lockstep/base/format.h"
#include "lockstep/base/observe/backward_name.h"

namespace lockstep::internal {
namespace {

// Sides with equal calls, the first of them first.
using SameCall = std::vector<const CallSide*>;

std::vector<SameCall> by_call(const std::vector<CallSide>& sides, bool by_line) {
  const auto call_of = [&](const CallSide& side) {
    Signature call = side.signature;
    call.check = 0;
    return std::pair(call, by_line ? call.line : std::uint16_t{0});
  };
  std::vector<SameCall> calls;
  for (const CallSide& side : sides) {
    const auto same =
        std::ranges::find_if(calls, [&](const SameCall& call) { return call_of(*call.front()) == call_of(side); });
    if (same == calls.end()) {
      calls.push_back({&side});
    } else {
      same->push_back(&side);
    }
  }
  return calls;
}

// The line counts where it is all that differs.
bool differ_by_line(const std::vector<CallSide>& sides) { return by_call(sides, false).size() == 1; }

bool have_one_generation(const std::vector<CallSide>& sides) {
  return std::ranges::all_of(
      sides, [&](const CallSide& side) { return side.signature.generation == sides.front().signature.generation; });
}

// Whether they look alike: what describe() leaves out, signature_of() leaves at its default on every rank.
bool look_alike(const std::vector<CallSide>& sides) {
  const std::vector<SameCall> calls = by_call(sides, false);
  for (auto a = calls.begin(); a != calls.end(); ++a) {
    for (auto b = a + 1; b != calls.end(); ++b) {
      const Signature &one = a->front()->signature, &other = b->front()->signature;
      if (one.name == other.name && describe(one) == describe(other)) return true;
    }
  }
  return false;
}

// Whether all are the same call of different backwards, or some are of a backward and the others of DDP's forward.
bool differ_by_backward(const std::vector<CallSide>& sides) {
  std::string_view first;
  bool is_same_name = true;
  for (const CallSide& side : sides) {
    const std::string_view name = side.account.name;
    is_same_name = is_same_name && name == sides.front().account.name;
    const std::size_t end = name.rfind(kOfBackward);
    if (end == std::string_view::npos && !name.starts_with("DDP ")) return false;
    if (end == std::string_view::npos) continue;
    if (!first.empty() && name.substr(0, end) != first) return false;
    first = name.substr(0, end);
  }
  return !first.empty() && !is_same_name;
}

// "with rank 0: 2, 3; " for calls that several ranks are in.
std::string companions(const std::vector<SameCall>& calls) {
  std::string text;
  for (const SameCall& call : calls) {
    if (call.size() == 1) continue;
    std::vector<int> others;
    for (auto side = call.begin() + 1; side != call.end(); ++side) others.push_back((*side)->rank);
    text += fmt::format("with rank {}: {}; ", call.front()->rank, fmt::join(others, ", "));
  }
  return text;
}

}  // namespace

Error desync_error(int rank, std::vector<CallSide> sides) {
  std::ranges::stable_sort(sides, [rank](const CallSide& a, const CallSide& b) {
    return std::pair(a.rank != rank, a.rank) < std::pair(b.rank != rank, b.rank);
  });
  const bool other_generation = !have_one_generation(sides);
  const bool by_line = differ_by_line(sides);
  const std::vector<SameCall> calls = by_call(sides, by_line);
  std::string text, failures;
  for (const SameCall& call : calls) {
    const CallSide& side = *call.front();
    text += fmt::format("{}{} in {}", text.empty() ? "" : "; ", side.who, describe(side.signature, side.account.name));
    if (other_generation) text += fmt::format(", generation {}", side.signature.generation);
    if (by_line) text += fmt::format(", called in line {}", side.signature.line);
  }
  for (const CallSide& side : sides) {
    if (side.account.failure.empty()) continue;
    failures += fmt::format("; before that, {} failed in {}", side.who, side.account.failure);
  }
  const char* hint = "all ranks must make the same calls in the same order";
  if (other_generation) {
    hint = "one of these calls belongs to an earlier attempt of this job";
  } else if (differ_by_backward(sides)) {
    hint =
        "a rank skipped a backward pass through ddp(...), ran an extra one, or ran a forward pass without a backward "
        "pass. All ranks must run the same ones; run a forward pass without a backward pass under NoGradGuard or "
        "no_sync()";
  } else if (look_alike(sides)) {
    hint = "their signatures differ in a reserved field, which was corrupted in transit";
  }
  const Signature& mine = sides.front().signature;
  return Error(ErrorKind::desync,
               fmt::format("ranks are in different collectives: {} ({}{}){}", text, companions(calls), hint, failures),
               {.rank = rank,
                .peer = calls.size() > 1 ? calls[1].front()->rank : -1,
                .operation = std::string(to_string(mine.kind)),
                .sequence = mine.sequence});
}

namespace {

// Calls of DDP have a name. One without it may be a bare call, which other ranks may never make.
std::string_view advice_on_departure(const Signature& wanted) {
  return wanted.name != 0 ? ". If ranks have different numbers of batches, use join(), or drop the last ones"
                          : ". Every rank must make this call: is it on some ranks only, as in if (rank == 0)? Or does "
                            "a loop run longer here? For different numbers of batches use join()";
}

}  // namespace

PeerFailure departure_in(const Signature& wanted, const std::string& name, Departure how, const std::string& waiter) {
  const std::uint64_t made = wanted.sequence - 1;
  const bool left = how == Departure::left;
  return {.peer = -1,
          .name = name,
          .how = how,
          .when = fmt::format("after {} collective{}", made, made == 1 ? "" : "s"),
          .consequence = fmt::format("{} waits for it in {}{}", waiter, describe(wanted),
                                     left ? advice_on_departure(wanted) : "")};
}

std::string describe_other_line(const std::string& who, const Signature& theirs, const Signature& mine) {
  return fmt::format(
      "{} calls {} in line {} of its source, this rank in line {}. If they are not meant to be the same call, "
      "their data is mixed up: give calls a name (CallOptions::name), or set GroupOptions::call_sites to must_match",
      who, describe(theirs), theirs.line, mine.line);
}

bool is_other_line(const Signature& theirs, const Signature& mine) {
  return theirs.line != mine.line && theirs.line != 0 && mine.line != 0 && !traits_of(mine.kind).has_root();
}

}  // namespace lockstep::internal
