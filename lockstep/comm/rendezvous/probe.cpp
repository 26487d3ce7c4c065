#include "lockstep/comm/rendezvous/probe.h"

#include <algorithm>
#include <future>
#include <optional>
#include <thread>

#include "lockstep/base/checked.h"
#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/base/log.h"
#include "lockstep/base/signal_block.h"
#include "lockstep/comm/net/acceptor.h"
#include "lockstep/comm/net/handshake.h"
#include "lockstep/comm/net/listener.h"
#include "lockstep/comm/net/socket.h"
#include "lockstep/comm/net/wire.h"

namespace lockstep::internal {
namespace {

using namespace std::chrono_literals;

constexpr const char* kPurpose = "probe";
constexpr Duration kBindTimeout = 2s;
constexpr Duration kLongestRoundTrip = 1h;  // a machine may have been suspended
constexpr Duration kStopLook = 50ms;
constexpr Duration kRetryPause = 5ms;
constexpr std::uint64_t kUnreached = ~std::uint64_t{0};

std::vector<int> leaders_of(const std::vector<Member>& members) {
  std::vector<int> leaders;
  for (const Member& member : members) {
    const auto same = [&](int leader) { return members[static_cast<std::size_t>(leader)].node_id == member.node_id; };
    if (std::ranges::none_of(leaders, same)) leaders.push_back(member.rank);
  }
  return leaders;
}

// Answers on all addresses of this host until it ends.
class Answerer {
 public:
  Answerer(const HandshakeSettings& settings, const std::vector<Interface>& interfaces) {
    std::vector<Listener> listeners;
    for (const Interface& each : interfaces) {
      try {
        listeners.push_back(Listener::bind({each.address, 0}, Deadline::after(kBindTimeout)));
        ports_.push_back(listeners.back().address().port());
      } catch (const Error&) {  // it is gone since it was listed
        ports_.push_back(0);
      }
    }
    acceptor_.emplace("the probe of this host's interfaces", std::move(listeners), settings,
                      [](const PeerIdentity&) { return std::nullopt; });
    const SignalBlock block = SignalBlock::of_new_thread();
    thread_ = std::jthread([this](const std::stop_token& stop) { answer(stop); });
  }

  // By interface; 0 where it could not listen.
  const std::vector<std::uint16_t>& ports() const { return ports_; }

 private:
  void answer(const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      try {
        acceptor_->next(Deadline::after(kStopLook));
      } catch (const Error&) {  // no descriptors: peers try again
        std::this_thread::sleep_for(kStopLook);
      }
    }
  }

  std::vector<std::uint16_t> ports_;
  std::optional<Acceptor> acceptor_;
  std::jthread thread_;  // last member: destroyed first
};

// The round trip of a connection to the given rank. A connection that breaks in its handshake is tried again: strangers
// may crowd the listener.
std::optional<Duration> attempt(HandshakeSettings settings, int rank, const Endpoint& endpoint, Duration timeout) {
  const Deadline deadline = Deadline::after(timeout);
  while (!deadline.expired()) {
    bool is_connected = false;
    try {
      const TimePoint start = steady_clock().now();
      const UniqueFd fd = connect_tcp(endpoint, ConnectRetry::never, deadline);
      const Duration round_trip = steady_clock().now() - start;
      is_connected = true;
      const PeerIdentity peer = handshake_as_client(fd.get(), settings, deadline);
      if (peer.rank == rank && peer.text == kPurpose) return round_trip;
      return std::nullopt;
    } catch (const Error& error) {
      if (!is_connected || error.kind() != ErrorKind::peer_lost)
        return std::nullopt;  // not reachable, or another process
    }
    std::this_thread::sleep_for(kRetryPause);
  }
  return std::nullopt;
}

class Probe {
 public:
  Probe(const ProbeSettings& settings, std::vector<Member>& members, Store& store, Deadline deadline)
      : settings_(settings), members_(members), store_(store), deadline_(deadline), leaders_(leaders_of(members)) {
    PeerIdentity mine = local_identity(settings.rank, static_cast<int>(members.size()), settings.generation);
    mine.text = kPurpose;
    handshake_ = {settings.token, settings.job_id, Channel::link, mine};
  }

  void run() {
    const bool leads = std::ranges::find(leaders_, settings_.rank) != leaders_.end();
    std::optional<Answerer> answerer;
    if (leads && has_choice(settings_.rank)) {
      answerer.emplace(handshake_, member(settings_.rank).interfaces);
      Bytes ports;
      for (const std::uint16_t port : answerer->ports()) put_u32(ports, port);
      store_.set(key("ports", settings_.rank), ports, deadline_);
    }
    for (const int leader : leaders_) {
      if (leads && leader != settings_.rank && has_choice(leader)) measure(leader);
    }
    if (answerer) choose();
    for (const int leader : leaders_) {
      if (has_choice(leader)) take_choice(leader);
    }
  }

 private:
  Member& member(int rank) { return members_[static_cast<std::size_t>(rank)]; }
  bool has_choice(int rank) { return member(rank).interfaces.size() > 1; }
  std::string key(const char* what, int rank) const { return fmt::format("probe/{}/{}", what, rank); }
  std::string result_key(int to, int from) const { return fmt::format("probe/result/{}/{}", to, from); }

  // All interfaces at once, so that one that drops packets does not delay the others.
  void measure(int leader) {
    const Bytes ports = store_.get(key("ports", leader), deadline_);
    WireReader reader(ports, {"ports for a probe", leader});
    std::vector<std::future<std::optional<Duration>>> attempts;
    for (const Interface& each : member(leader).interfaces) {
      const Endpoint endpoint{each.address,
                              checked_between<std::uint16_t>(reader.u32(), 0, 65535, "port", reader.origin())};
      const SignalBlock block = SignalBlock::of_new_thread();
      attempts.push_back(std::async(std::launch::async, attempt, handshake_, leader, endpoint, settings_.host_timeout));
    }
    Bytes result;
    for (auto& each : attempts) {
      const std::optional<Duration> round_trip = each.get();
      put_u64(result, round_trip ? static_cast<std::uint64_t>(round_trip->count()) : kUnreached);
    }
    store_.set(result_key(leader, settings_.rank), result, deadline_);
  }

  void choose() {
    const std::vector<Interface>& interfaces = member(settings_.rank).interfaces;
    std::vector<Reachability> found(interfaces.size());
    for (const int leader : leaders_) {
      if (leader == settings_.rank) continue;
      const Bytes result = store_.get(result_key(settings_.rank, leader), deadline_);
      WireReader reader(result, {"result of a probe", leader});
      for (Reachability& each : found) {
        const std::uint64_t nanoseconds = reader.u64();
        if (nanoseconds == kUnreached) {
          each.unreached_from.push_back(member(leader).host);
        } else {
          const auto told = checked_between<std::int64_t>(nanoseconds, 0, kLongestRoundTrip.count(), "round trip in ns",
                                                          reader.origin());
          each.round_trip = std::max<Duration>(each.round_trip, std::chrono::nanoseconds(told));
        }
      }
    }
    const int chosen = choose_interface(found);
    const std::string report = explain(interfaces, found, chosen);
    if (chosen >= 0) log_info(report);
    Bytes choice;
    put_u32(choice, static_cast<std::uint32_t>(chosen + 1));
    put_bytes(choice, report);
    store_.set(key("choice", settings_.rank), choice, deadline_);
  }

  std::string explain(const std::vector<Interface>& interfaces, const std::vector<Reachability>& found, int chosen) {
    std::vector<std::string> parts;
    for (std::size_t i = 0; i < interfaces.size(); ++i) {
      const std::string what = fmt::format("{} ({})", interfaces[i].address, interfaces[i].name);
      const double milliseconds = seconds(found[i].round_trip) * 1e3;
      parts.push_back(found[i].unreached_from.empty()
                          ? fmt::format("{}: round trip {:.2f} ms", what, milliseconds)
                          : fmt::format("{}: not reached from {}", what, fmt::join(found[i].unreached_from, ", ")));
    }
    const std::string host = member(settings_.rank).host;
    if (chosen < 0) {
      return fmt::format(
          "no address of host {} can be reached from all other hosts of the job: {}; connect their networks, or "
          "name the interface to use in LOCKSTEP_IFNAME",
          host, fmt::join(parts, "; "));
    }
    return fmt::format("peers reach host {} at {}; probed: {}", host,
                       interfaces[static_cast<std::size_t>(chosen)].address, fmt::join(parts, "; "));
  }

  void take_choice(int leader) {
    const Bytes choice = store_.get(key("choice", leader), deadline_);
    WireReader reader(choice, {"choice of an address", leader});
    const std::vector<Interface>& interfaces = member(leader).interfaces;
    const std::size_t chosen =
        checked_size(reader.u32(), interfaces.size(), "number of the interface", reader.origin());
    if (chosen == 0) {
      throw Error(ErrorKind::timeout, std::string(reader.bytes()), {.rank = settings_.rank, .peer = leader});
    }
    const std::string address = interfaces[chosen - 1].address;
    for (Member& each : members_) {
      if (each.node_id == member(leader).node_id && each.interfaces.size() > 1) each.address = address;
    }
  }

  const ProbeSettings& settings_;
  std::vector<Member>& members_;
  Store& store_;
  const Deadline deadline_;
  const std::vector<int> leaders_;
  HandshakeSettings handshake_;
};

}  // namespace

bool needs_probe(const std::vector<Member>& members) {
  return leaders_of(members).size() > 1 &&
         std::ranges::any_of(members, [](const Member& each) { return each.interfaces.size() > 1; });
}

void choose_addresses(const ProbeSettings& settings, std::vector<Member>& members, Store& store, Deadline deadline) {
  Probe(settings, members, store, deadline).run();
}

int choose_interface(const std::vector<Reachability>& interfaces) {
  int chosen = -1;
  for (std::size_t i = 0; i < interfaces.size(); ++i) {
    if (!interfaces[i].unreached_from.empty()) continue;
    if (chosen < 0 || interfaces[i].round_trip * 2 < interfaces[static_cast<std::size_t>(chosen)].round_trip) {
      chosen = static_cast<int>(i);
    }
  }
  return chosen;
}

}  // namespace lockstep::internal
