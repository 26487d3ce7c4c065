#include "lockstep/job/elastic/local_coordinator.h"

#include <algorithm>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/job/elastic/hello.h"

namespace lockstep::internal {
namespace {

constexpr Duration kTellWaitingAfter = std::chrono::seconds(5);
constexpr Duration kCloseTimeout = std::chrono::seconds(1);

std::string new_job_id() {
  std::string id;
  const auto bytes = Token::generate().bytes();
  for (std::size_t i = 0; i < 8; ++i) id += fmt::format("{:02x}", bytes[i]);
  return id;
}

}  // namespace

LocalCoordinator::LocalCoordinator(const AgentOptions& options, std::optional<EndpointListener> listener,
                                   HostOutput& output, Hello own)
    : options_(options),
      listener_(std::move(listener)),
      output_(output),
      job_id_(new_job_id()),
      own_hello_(std::move(own)),
      machine_(options.machine, steady_clock().now()),
      tell_waiting_at_(Deadline::after(kTellWaitingAfter)) {
  if (const auto refused = machine_.arrive(entry_of(0, own_hello_), steady_clock().now())) {
    throw Error(ErrorKind::invalid_argument, refused->why);
  }
  inbox_.push_back(Welcome{0, job_id_});
  take_over(own_hello_.handover);
}

void LocalCoordinator::watch(std::vector<pollfd>& set) const {
  if (listener_) listener_->watch(set);
  for (const Connection& connection : connections_) set.push_back(connection.link.wanted());
}

Deadline LocalCoordinator::wake_at() const {
  Deadline wake = listener_ ? std::min(listener_->wake_at(), machine_.wake_at()) : machine_.wake_at();
  if (!inbox_.empty()) return Deadline::after({});
  if (!machine_.waits_for().empty()) wake = std::min(wake, tell_waiting_at_);
  if (hang_ && machine_.undisturbed()) wake = std::min(wake, Deadline::at(hang_->next_look()));
  for (const Connection& connection : connections_) {
    wake = std::min(wake, connection.link.failed() ? Deadline::after({}) : connection.link.wake_at());
  }
  return wake;
}

void LocalCoordinator::tend() {
  if (listener_) {
    listener_->tend();
    yields_ = yields_ || (listener_->is_rival() && is_alone());
    while (auto link = listener_->take()) connections_.push_back({.link = std::move(*link)});
  }
  for (Connection& connection : connections_) serve(connection);
  part_from_failed();
  look_for_hang();
  obey();
  tell_monitor();
  tell_of_waiting();
}

std::optional<AgentMessage> LocalCoordinator::take() {
  if (inbox_.empty()) return std::nullopt;
  AgentMessage message = std::move(inbox_.front());
  inbox_.pop_front();
  return message;
}

void LocalCoordinator::serve(Connection& connection) {
  connection.link.tend();
  while (auto message = connection.link.take()) receive(connection, *message);
  look_if_frozen(connection);
  if (connection.shown_bytes > 0 && !output_.is_full()) {
    connection.link.send(OutputTaken{static_cast<std::uint32_t>(std::exchange(connection.shown_bytes, 0))});
  }
}

// What is said of one that has failed may fail on its way to another one.
void LocalCoordinator::part_from_failed() {
  const auto is_due = [](const Connection& connection) { return connection.link.failed() && !connection.has_parted; };
  for (auto due = connections_.begin(); due != connections_.end();) {
    due = std::ranges::find_if(connections_, is_due);
    if (due != connections_.end()) part_from(*due);
  }
  std::erase_if(connections_, [](const Connection& connection) { return connection.has_parted; });
}

void LocalCoordinator::part_from(Connection& connection) {
  connection.has_parted = true;
  std::erase_if(other_jobs_, [&](const auto& job) { return job.second.connection == &connection; });
  if (connection.number < 0) return;
  pass_on_status(connection.number, nullptr);
  if (machine_.over()) return;
  const bool has_slot = machine_.running() &&
                        std::ranges::find(machine_.slots(), connection.number, &Slot::host) != machine_.slots().end();
  machine_.lose(connection.number, connection.link.why(), connection.link.went_silent(), steady_clock().now());
  if (has_slot) {
    announce(describe(machine_.outcome().lost.back()));
    tell_event(JobEvent::Kind::loss);
  } else {
    announce(fmt::format("host {} has disconnected: {}", connection.hello->host, connection.link.why()));
  }
}

void LocalCoordinator::receive(Connection& connection, const AgentMessage& message) {
  if (const auto* hello = std::get_if<Hello>(&message); hello != nullptr && !connection.hello) {
    greet(connection, *hello);
  } else if (const auto* gathers = std::get_if<Gathers>(&message); gathers != nullptr && !connection.hello) {
    const bool is_rival = gathers->rdzv_id == options_.rdzv_id;
    if (!is_rival) other_jobs_.try_emplace(gathers->rdzv_id, OtherJob{gathers->port, &connection});
    // The job was gathered before, beside another one whose agent held the endpoint.
    yields_ = yields_ || (is_rival && is_alone());
    connection.link.send(Elsewhere{is_rival && yields_ ? gathers->port : port_of(gathers->rdzv_id)});
  } else if (const auto* status = std::get_if<AskStatus>(&message); status != nullptr && !connection.hello) {
    answer(connection, *status);
  } else if (const auto* stop = std::get_if<StopJob>(&message); stop != nullptr && !connection.hello) {
    answer(connection, *stop);
  } else if (connection.number >= 0) {
    if (const auto* output = std::get_if<Output>(&message)) connection.shown_bytes += output->lines.size();
    if (const auto* done = std::get_if<HostDone>(&message)) connection.hello->master_port = done->master_port;
    hear(connection.number, message);
  }
}

void LocalCoordinator::greet(Connection& connection, const Hello& hello) {
  if (hello.rdzv_id != options_.rdzv_id) return connection.link.send(Elsewhere{port_of(hello.rdzv_id)});
  std::optional<Refused> refused;
  const int number = next_number_++;
  if (const auto why = objection(hello, own_hello_)) {
    refused = Refused{*why};
  } else {
    refused = machine_.arrive(entry_of(number, hello), steady_clock().now());
  }
  const std::string who = fmt::format("host {} ({}, pid {})", hello.host, connection.link.peer_address(), hello.pid);
  if (refused) {
    connection.link.send(*refused);
    if (refused_.insert(who).second) announce(fmt::format("{} cannot join: {}", who, refused->why));
    return;
  }
  connection.hello = hello;
  connection.number = number;
  connection.link.send(Welcome{number, job_id_});
  take_over(hello.handover);
  const std::size_t here = machine_.hosts().size();
  announce(fmt::format("{} has joined: {} of {} host{}", who, here,
                       range_text(options_.machine.least, options_.machine.most),
                       options_.machine.most == 1 ? "" : "s"));
  if (here > static_cast<std::size_t>(options_.machine.most)) {
    announce(fmt::format("host {} waits until another host leaves", hello.host));
  }
}

void LocalCoordinator::hear(int host, const AgentMessage& message) {
  const TimePoint now = steady_clock().now();
  if (const auto* ended = std::get_if<RankEnded>(&message)) {
    machine_.rank_ended(host, ended->generation, ended->end, now);
  } else if (const auto* crashed = std::get_if<RankStack>(&message)) {
    machine_.rank_crashed(host, crashed->generation, crashed->rank, {crashed->lines.begin(), crashed->lines.end()});
  } else if (const auto* done = std::get_if<HostDone>(&message)) {
    if (host == 0) own_hello_.master_port = done->master_port;
    machine_.host_done(host, done->generation, now);
  } else if (const auto* ask = std::get_if<AskToStop>(&message)) {
    hear_request(host, ask->signal, now);
  } else if (std::holds_alternative<Reached>(message)) {
    if (const HostEntry* back = machine_.find(host))
      announce(fmt::format("host {} reaches all other hosts again", back->name));
    machine_.reach(host, now);
  } else if (const auto* status = std::get_if<HostStatus>(&message)) {
    pass_on_status(host, status);
  } else if (const auto* counts = std::get_if<RankCounts>(&message)) {
    tell_monitor(host, *counts);
  } else if (const auto* output = std::get_if<Output>(&message)) {
    output_.show(output->stream, output->lines);
  } else if (hang_ && machine_.find(host) != nullptr) {
    hang_->hear(*machine_.find(host), message, now);
  }
}

void LocalCoordinator::look_for_hang() {
  if (!hang_ || !machine_.undisturbed()) return;
  const TimePoint now = steady_clock().now();
  const JobHang::Result result = hang_->look(machine_.busy(), now);
  tell_monitor(result);
  for (const std::string& line : result.lines) output_.say(line);
  if (result.stacks_first_of) tell_slots(TellStacks{*result.stacks_first_of});
  if (!result.verdict.empty()) machine_.hang(result.verdict, result.blamed, now);
}

void LocalCoordinator::obey() {
  for (;;) {
    const std::vector<JobOrder> orders = machine_.take_orders(steady_clock().now());
    if (orders.empty()) return;
    for (const JobOrder& order : orders) obey(order);
  }
}

void LocalCoordinator::obey(const JobOrder& order) {
  switch (order.kind) {
    case JobOrder::Kind::start: return try_to_start();
    case JobOrder::Kind::stop: return tell_slots(StopRanks{order.signal});
    case JobOrder::Kind::end: return tell_slots(EndRanks{});
    case JobOrder::Kind::kill: return order.host < 0 ? tell_slots(KillRanks{}) : tell(order.host, KillRanks{});
    case JobOrder::Kind::dismiss: return dismiss(order.host);
    case JobOrder::Kind::keep_out: return keep_out(order.host, order.other);
    case JobOrder::Kind::report: return report();
    case JobOrder::Kind::finish: return finish();
  }
}

void LocalCoordinator::report() {
  store_.reset();
  hang_.reset();
  // Why a host is lost was said when it was; what follows from that is no news.
  if (machine_.outcome().lost.empty() || machine_.failed_first()) {
    Outcome said = machine_.outcome();
    if (machine_.result().goes_on) said.stop_signal = 0;  // this host is, and not the job
    for (const std::string& line : internal::report(said)) output_.say(line, LogLevel::error);
  }
  output_.report_is_said();
  outcomes_.push_back(machine_.outcome());
  if (machine_.over() || options_.machine.max_restarts == 0 || machine_.restarts() == 0) return;
  if (machine_.outcome().lost.empty() && machine_.outcome().failed()) {
    announce(fmt::format("restart {} of {}", machine_.restarts(), options_.machine.max_restarts));
  }
}

void LocalCoordinator::finish() {
  const JobResult& result = machine_.result();
  if (!outcomes_.empty()) outcomes_.back().stop_signal = machine_.outcome().stop_signal;
  std::string text = result.text;
  if (!text.empty()) output_.say(text);
  if (const RankEnd* cause = machine_.outcome().first_failure(); text.empty() && cause != nullptr) {
    text = describe_failure(*cause);
  } else if (text.empty()) {
    text = machine_.outcome().hang;
  }
  if (result.goes_on) return leave_to_others();
  const Farewell farewell{result.exit_code, text};
  tell_event(JobEvent::Kind::end);
  inbox_.push_back(farewell);
  for (Connection& connection : connections_) {
    if (connection.waits_for_end) connection.link.send(farewell);
    if (connection.number < 0) continue;
    if (!machine_.had_slot(connection.number))
      connection.link.send(Notice{"this host was not needed and ran no ranks"});
    connection.link.send(farewell);
  }
}

// The others close their links when they have read the farewell; closed here, they might lose it.
void LocalCoordinator::close() {
  const Deadline deadline = Deadline::after(kCloseTimeout);
  for (;;) {
    std::erase_if(connections_, [](const Connection& connection) {
      return connection.link.failed() || (connection.number < 0 && !connection.waits_for_end);
    });
    if (connections_.empty() || deadline.expired()) return;
    std::vector<pollfd> set;
    for (const Connection& connection : connections_) set.push_back(connection.link.wanted());
    ::poll(set.data(), set.size(), deadline.poll_timeout_ms());
    for (Connection& connection : connections_) {
      connection.link.tend();
      while (connection.link.take()) {
      }
    }
  }
}

void LocalCoordinator::tell(int host, const AgentMessage& message) {
  if (host == 0) return inbox_.push_back(message);
  for (Connection& connection : connections_) {
    if (connection.number == host) connection.link.send(message);
  }
}

void LocalCoordinator::tell_slots(const AgentMessage& message) {
  for (const Slot& slot : machine_.slots()) tell(slot.host, message);
}

}  // namespace lockstep::internal
