#include "lockstep/job/elastic/meeting.h"

#include <poll.h>

#include <algorithm>
#include <csignal>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/comm/net/port_holder.h"
#include "lockstep/job/elastic/endpoint_listener.h"
#include "lockstep/job/elastic/hello.h"
#include "lockstep/job/elastic/local_coordinator.h"
#include "lockstep/job/elastic/remote_coordinator.h"
#include "lockstep/job/launch/launcher_line.h"

namespace lockstep::internal {
namespace {

constexpr Duration kOneTry = std::chrono::seconds(1);
constexpr Duration kOneResolution = std::chrono::seconds(5);
constexpr Duration kPauseOfMeeting = std::chrono::milliseconds(200);
// For so long an agent that was refused tries again where that may do: until a death is noticed, and beyond the time
// that ranks have to save before their host leaves.
constexpr Duration kRefusalMayPass = std::chrono::seconds(5);
constexpr Duration kTellAfter = std::chrono::seconds(5);
// An agent on the endpoint's host that has asked for another node rank than 0 lets that one listen.
constexpr Duration kLetFirstListen = std::chrono::seconds(2);
// How often something else than an agent may answer at the endpoint, such as a program that is just ending.
constexpr int kMostStrangers = 5;

// Not of a kind that visit() takes for trouble that may pass.
class Refusal : public Error {
 public:
  explicit Refusal(const std::string& text) : Error(ErrorKind::aborted, text) {}
};

Met become_coordinator(const AgentOptions& options, std::optional<EndpointListener> listener, const Hello& hello) {
  const HostOutput::Way way = options.is_alone ? HostOutput::Way::alone : HostOutput::Way::shown_here;
  Met met{.output = std::make_unique<HostOutput>(options.output, options.job.ranks, way)};
  met.coordinator = std::make_unique<LocalCoordinator>(options, std::move(listener), *met.output, hello);
  met.is_first = true;
  return met;
}

class Meeter {
 public:
  Meeter(const AgentOptions& options, SignalRelay& signals, bool listens_first, const Handover& handover)
      : options_(options),
        signals_(signals),
        deadline_(Deadline::after(options.machine.join_timeout)),
        tell_at_(Deadline::after(kTellAfter)),
        listen_at_(Deadline::after(listens_first && options.node_rank.value_or(0) == 0 ? Duration{} : kLetFirstListen)),
        hello_(hello_of(options)) {
    hello_.handover = handover;
  }

  Met meet() {
    for (;;) {
      if (Met met = try_once(); met.coordinator) return met;
      while (const int signal = signals_.take()) {
        if (signal != SIGTSTP) return {.stop_signal = signal};
      }
      if (deadline_.expired()) give_up();
      if (tell_at_.expired()) tell();
      pollfd entry{signals_.fd(), POLLIN, 0};
      ::poll(&entry, 1, std::min(deadline_, Deadline::after(kPauseOfMeeting)).poll_timeout_ms());
    }
  }

 private:
  bool is_here() const { return !addresses_.empty(); }

  // The name of a host that is still being started may become known only then, as in Kubernetes, and this host may get
  // the address late that the endpoint names.
  bool resolve_endpoint() {
    try {
      addresses_ = addresses_to_listen(options_.endpoint, std::min(deadline_, Deadline::after(kOneResolution)));
      return true;
    } catch (const Error& error) {
      trouble_ = error.what();
      return false;
    }
  }

  Met try_once() {
    if (!is_here() && !resolve_endpoint()) return {};
    if (is_here() && listen_at_.expired()) {
      if (auto listener =
              EndpointListener::open(addresses_, options_.endpoint.port, options_.token, options_.rdzv_id)) {
        return become_coordinator(options_, std::move(listener), hello_);
      }
    }
    Endpoint endpoint = options_.endpoint;
    if (is_here()) endpoint.host = addresses_.front();
    return visit(endpoint, false);
  }

  // Nothing if nobody is there now.
  Met visit(const Endpoint& endpoint, bool was_sent) {
    try {
      AgentAnswer answer = ask_agent(endpoint, options_.token, hello_, std::min(deadline_, Deadline::after(kOneTry)));
      strangers_ = 0;
      if (const auto* refused = std::get_if<Refused>(&answer.message)) return take_refusal(*refused);
      if (const auto* elsewhere = std::get_if<Elsewhere>(&answer.message)) {
        return was_sent ? Met{} : follow(endpoint, elsewhere->port);
      }
      return take_place(std::move(answer));
    } catch (const Error& error) {
      // The last try has hardly any time: what it lacked is no reason.
      if (!deadline_.expired() || trouble_.empty()) trouble_ = error.what();
      const bool may_pass = error.kind() == ErrorKind::peer_lost || error.kind() == ErrorKind::timeout;
      const bool stranger = error.kind() == ErrorKind::corrupt_data;
      if (stranger && ++strangers_ >= kMostStrangers) throw_stranger();
      if (!may_pass && !stranger) throw;
      return {};
    }
  }

  // Nothing if trying again may do.
  Met take_refusal(const Refused& refused) {
    const std::string text =
        fmt::format("the job at {} refuses this host: {}", to_string(options_.endpoint), refused.why);
    if (!refused.may_pass) throw Error(ErrorKind::invalid_argument, text);
    if (!refused_until_) refused_until_ = Deadline::after(options_.stop_grace + options_.grace + kRefusalMayPass);
    if (refused_until_->expired()) throw Refusal(text);
    trouble_ = text;
    return {};
  }

  Met take_place(AgentAnswer answer) {
    const std::string first = answer.link.peer().host;
    Met met{.output = std::make_unique<HostOutput>(options_.output, options_.job.ranks, HostOutput::Way::sent)};
    auto coordinator = std::make_unique<RemoteCoordinator>(std::move(answer.link), first);
    coordinator->receive(std::move(answer.message));
    met.coordinator = std::move(coordinator);
    return met;
  }

  // The endpoint is held for another job.
  Met follow(const Endpoint& endpoint, int port) {
    if (port != 0) return visit({endpoint.host, static_cast<std::uint16_t>(port)}, true);
    trouble_ = "it is in use by a job with another --rdzv-id, and no agent on that host serves this job";
    if (!is_here() || !listen_at_.expired()) return {};
    EndpointListener listener =
        EndpointListener::open_elsewhere(addresses_, options_.endpoint.port, options_.token, options_.rdzv_id);
    const int registered = listener.register_at_endpoint(std::min(deadline_, Deadline::after(kOneTry)));
    if (registered != listener.port()) return {};  // another agent was faster, or the holder has gone
    return become_coordinator(options_, std::move(listener), hello_);
  }

  [[noreturn]] void throw_stranger() const {
    const std::string holder = is_here() ? describe_port_holder(options_.endpoint.port) : "";
    throw Error(
        ErrorKind::invalid_argument,
        fmt::format("{} is in use by {}, which is not a Lockstep agent; choose another port for --rdzv-endpoint ({})",
                    to_string(options_.endpoint), holder.empty() ? "a program" : holder, trouble_));
  }

  [[noreturn]] void give_up() const {
    throw Error(ErrorKind::timeout,
                fmt::format("no first host answered at {} within {:g} s (--rdzv-conf join_timeout=): {}",
                            to_string(options_.endpoint), seconds(options_.machine.join_timeout), trouble_));
  }

  void tell() {
    tell_at_ = Deadline::never();
    say_on_standard_error(fmt::format("waiting for the first host at {}: {}", to_string(options_.endpoint), trouble_));
  }

  const AgentOptions& options_;
  SignalRelay& signals_;
  const Deadline deadline_;
  Deadline tell_at_;
  const Deadline listen_at_;
  Hello hello_;
  std::vector<std::string> addresses_;  // of this host, if the endpoint is here
  std::optional<Deadline> refused_until_;
  std::string trouble_;
  int strangers_ = 0;
};

}  // namespace

Met meet(const AgentOptions& options, SignalRelay& signals, bool listens_first, const Handover& handover) {
  if (options.is_alone) return become_coordinator(options, std::nullopt, hello_of(options));
  return Meeter(options, signals, listens_first, handover).meet();
}

}  // namespace lockstep::internal
