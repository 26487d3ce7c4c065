// How an attempt begins: its store, what each host is told, and by which addresses hosts find each other.
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/job/elastic/local_coordinator.h"

namespace lockstep::internal {
namespace {

constexpr Duration kTellWaitingAgain = std::chrono::seconds(60);

bool is_loopback(const std::string& address) { return address == "::1" || address.starts_with("127."); }

}  // namespace

// What keeps the first attempt from starting is the caller's; a later one leaves the job as the one before has ended.
void LocalCoordinator::try_to_start() {
  try {
    start();
  } catch (const Error& error) {
    if (outcomes_.empty()) throw;
    machine_.abandon(exit_code_of(outcomes_.back()), fmt::format("cannot restart: {}", error.what()));
    finish();
  }
}

void LocalCoordinator::start() {
  const std::vector<Slot>& slots = machine_.slots();
  const std::string address = store_address();
  store_ = std::make_unique<JobStore>(address, options_.token, job_id_, world_size(slots), machine_.generation());
  const Hello* first = hello_from(slots.front().host);
  StartRanks start{.generation = machine_.generation(),
                   .restarts = machine_.restarts(),
                   .nodes = static_cast<int>(slots.size()),
                   .world_size = world_size(slots),
                   .store = store_->endpoint(),
                   .master_addr = options_.master_addr,
                   .master_port = options_.master_port != 0 ? options_.master_port : first->master_port,
                   .restart_reason = outcomes_.empty() ? "" : restart_reason(outcomes_.back()),
                   .wants_counts = options_.monitor != nullptr};
  if (start.master_addr.empty()) start.master_addr = listener_ ? address_of(slots.front().host) : store_->host();
  hang_.reset();
  if (options_.hang) {
    hang_.emplace(*options_.hang, machine_.generation(), start.world_size, steady_clock().now());
    start.tell_hang_after_ms = hang_->tell_after_ms();
  }
  if (listener_) {
    announce(fmt::format("{}{} rank{} on {} host{}: {}", machine_.generation() == 0 ? "" : "begins again with ",
                         start.world_size, start.world_size == 1 ? "" : "s", slots.size(), slots.size() == 1 ? "" : "s",
                         describe_slots(slots, machine_.hosts())));
  }
  for (const Slot& slot : slots) {
    start.node_rank = slot.node_rank;
    start.first_rank = slot.first_rank;
    tell(slot.host, start);
  }
  tell_event(machine_.generation() == 0 ? JobEvent::Kind::start : JobEvent::Kind::restart);
}

// The address at which the other hosts have reached this one.
std::string LocalCoordinator::store_address() const {
  if (!listener_) return "localhost";
  if (!options_.local_addr.empty()) return options_.local_addr;
  for (const Connection& connection : connections_) {
    if (connection.number >= 0 && !is_loopback(connection.link.own_address())) return connection.link.own_address();
  }
  return listener_->address();
}

std::string LocalCoordinator::address_of(int host) const {
  for (const Connection& connection : connections_) {
    if (connection.number == host) return connection.link.peer_address();
  }
  return store_address();
}

const Hello* LocalCoordinator::hello_from(int host) const {
  for (const Connection& connection : connections_) {
    if (connection.number == host) return &*connection.hello;
  }
  return &own_hello_;
}

void LocalCoordinator::tell_of_waiting() {
  const std::string missing = machine_.waits_for();
  if (missing.empty() || !tell_waiting_at_.expired()) return;
  tell_waiting_at_ = Deadline::after(kTellWaitingAgain);
  std::string line = fmt::format("waiting for {} at {}", missing, to_string(options_.endpoint));
  if (is_loopback(listener_->address()) && is_loopback(store_address())) {
    line += fmt::format(", which is {} here: other hosts cannot reach it; use a network address of this host",
                        listener_->address());
  }
  announce(line);
}

}  // namespace lockstep::internal
