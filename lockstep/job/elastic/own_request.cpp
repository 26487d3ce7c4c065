#include "lockstep/job/elastic/own_request.h"

#include <csignal>
#include <utility>

#include "lockstep/base/format.h"
#include "lockstep/job/launch/exit_codes.h"
#include "lockstep/job/launch/launcher_line.h"
#include "lockstep/job/launch/stop_rules.h"

namespace lockstep::internal {

void OwnRequest::hear(int signal, TimePoint now) {
  if (!signal_) heard_at_ = now;
  signal_ = signal;
}

// With MIN < MAX a SIGTERM is for the host that gets it.
bool OwnRequest::leaves() const { return signal_ == SIGTERM && options_.machine.least < options_.machine.most; }

bool OwnRequest::insist(int signal) {
  const bool asks_anew = leaves() && signal == SIGINT;
  if (asks_anew) signal_ = signal;
  insists_ = insists_ || !asks_anew;
  return !asks_anew;
}

void OwnRequest::insist_without_ranks(int signal, TimePoint now) {
  const bool is_another = now - heard_at_ >= kSameRequest;
  if (insist(signal) && is_another) ends_alone_ = true;
}

std::optional<Met> OwnRequest::meet_again(SignalRelay& signals, bool listens_first, const Handover& handover) {
  is_frozen_ = false;
  while (!leaves()) {
    Met met = meet(options_, signals, listens_first, handover);
    if (met.coordinator) {
      if (signal_) met.coordinator->post(AskToStop{*signal_});
      return met;
    }
    if (signal_) return std::nullopt;
    hear(met.stop_signal, steady_clock().now());
    if (leaves()) break;
    say_on_standard_error(fmt::format("{}: stopping the job when its hosts have met (repeat to end without them)",
                                      signal_name(*signal_)));
  }
  return std::nullopt;
}

bool OwnRequest::waits_in_vain(const Coordinator& coordinator) {
  const bool is_frozen = coordinator.frozen_for() > Duration{};
  if (is_frozen != std::exchange(is_frozen_, is_frozen)) {
    say_on_standard_error(is_frozen ? "the agent of the first host does not answer, although its host does: it is "
                                      "stopped or very slow; waiting for it"
                                    : "the agent of the first host answers again");
  }
  return is_frozen && signal_ && (insists_ || steady_clock().now() - heard_at_ >= options_.stop_grace);
}

int OwnRequest::exit_code() const {
  if (!leaves()) return options_.machine.stop_exit_code;
  say_on_standard_error(kLeftText);
  return kLeftExitCode;
}

}  // namespace lockstep::internal
