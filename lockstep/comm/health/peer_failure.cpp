#include "lockstep/comm/health/peer_failure.h"

#include "lockstep/base/format.h"

namespace lockstep::internal {
namespace {

constexpr std::string_view kHasLeft = "has left the group";
constexpr std::string_view kDiedOrLeft = "died or left the group";

std::string_view verb_of(Departure how) {
  switch (how) {
    case Departure::none: return "is alive";
    case Departure::left: return kHasLeft;
    case Departure::died: return "has ended";
    case Departure::lost: return "was lost";
    case Departure::gone: return kDiedOrLeft;
  }
  return "is gone";
}

}  // namespace

std::string describe(const PeerFailure& failure) {
  return fmt::format("{} {}{}{}{}{}{}{}", failure.name, verb_of(failure.how), failure.when.empty() ? "" : " ",
                     failure.when, failure.why.empty() ? "" : ": ", failure.why,
                     failure.consequence.empty() ? "" : "; ", failure.consequence);
}

Error peer_lost(const PeerFailure& failure, int rank) {
  return Error(ErrorKind::peer_lost, describe(failure), {.rank = rank, .peer = failure.peer});
}

bool is_plain_departure(const Error& error) {
  return error.kind() == ErrorKind::peer_lost && error.detail().peer >= 0 &&
         std::string_view(error.what()).ends_with(kHasLeft);
}

bool may_have_left(const Error& error) {
  if (error.kind() != ErrorKind::peer_lost || error.detail().peer < 0) return false;
  return is_plain_departure(error) || std::string_view(error.what()).find(kDiedOrLeft) != std::string_view::npos;
}

std::string describe_missing(std::string_view name, std::string_view reason, const PeerHealth& health) {
  std::string text(name);
  if (!reason.empty()) text.append(" ").append(reason);
  const bool has_gone = health.departure != Departure::none;
  const std::string seen = has_gone ? std::string(verb_of(health.departure)) : health.text();
  if (!seen.empty()) text.append(has_gone && reason.empty() ? " " : ": ").append(seen);
  return text;
}

Error error_for_peers(std::string_view name, int rank, const Error& error) {
  if (error.kind() == ErrorKind::peer_lost) return error;
  return Error(error.kind() == ErrorKind::invalid_argument ? error.kind() : ErrorKind::aborted,
               fmt::format("{} has given up: {}", name, error.what()), {.rank = error.detail().rank, .peer = rank});
}

}  // namespace lockstep::internal
