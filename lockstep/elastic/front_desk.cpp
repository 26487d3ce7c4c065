#include "lockstep/elastic/front_desk.h"

#include <algorithm>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/elastic/hello.h"

namespace lockstep::internal {
namespace {

constexpr Duration kTellWaitingAfter = std::chrono::seconds(5);
constexpr Duration kTellWaitingAgain = std::chrono::seconds(60);
constexpr Duration kCloseTimeout = std::chrono::seconds(1);

std::string new_job_id() {
  std::string id;
  const auto bytes = Token::generate().bytes();
  for (std::size_t i = 0; i < 8; ++i) id += fmt::format("{:02x}", bytes[i]);
  return id;
}

RollOptions roll_options(const AgentOptions& options) {
  return {.least = options.least,
          .most = options.most,
          .max_restarts = options.max_restarts,
          .join_timeout = options.join_timeout,
          .last_call = options.last_call,
          .loss_interval = options.loss_interval,
          .stop_exit_code = options.stop_exit_code};
}

bool is_loopback(const std::string& address) { return address == "::1" || address.starts_with("127."); }

}  // namespace

FrontDesk::FrontDesk(const AgentOptions& options, std::optional<EndpointPost> post, HostOutput& output, Hello own)
    : options_(options),
      post_(std::move(post)),
      output_(output),
      job_id_(new_job_id()),
      own_hello_(std::move(own)),
      roll_(roll_options(options), steady_clock().now()),
      tell_waiting_at_(Deadline::after(kTellWaitingAfter)) {
  if (const auto refused = roll_.arrive(entry_of(0, own_hello_), steady_clock().now())) {
    throw Error(ErrorKind::invalid_argument, refused->why);
  }
  inbox_.push_back(Welcome{0, job_id_});
  take_over(own_hello_.handover);
}

void FrontDesk::watch(std::vector<pollfd>& set) const {
  if (post_) post_->watch(set);
  for (const Visitor& visitor : visitors_) set.push_back(visitor.link.wanted());
}

Deadline FrontDesk::wake_at() const {
  Deadline wake = post_ ? std::min(post_->wake_at(), roll_.wake_at()) : roll_.wake_at();
  if (!inbox_.empty()) return Deadline::after({});
  if (!roll_.waits_for().empty()) wake = std::min(wake, tell_waiting_at_);
  if (hang_ && roll_.undisturbed()) wake = std::min(wake, Deadline::at(hang_->next_look()));
  for (const Visitor& visitor : visitors_) {
    wake = std::min(wake, visitor.link.failed() ? Deadline::after({}) : visitor.link.wake_at());
  }
  return wake;
}

void FrontDesk::tend() {
  if (post_) {
    post_->tend();
    yields_ = yields_ || (post_->is_rival() && is_alone());
    while (auto link = post_->take()) visitors_.push_back({.link = std::move(*link)});
  }
  for (Visitor& visitor : visitors_) serve(visitor);
  part_from_failed();
  look_for_hang();
  obey();
  tell_monitor();
  tell_of_waiting();
}

std::optional<AgentMessage> FrontDesk::take() {
  if (inbox_.empty()) return std::nullopt;
  AgentMessage message = std::move(inbox_.front());
  inbox_.pop_front();
  return message;
}

void FrontDesk::serve(Visitor& visitor) {
  visitor.link.tend();
  while (auto message = visitor.link.take()) receive(visitor, *message);
  look_if_frozen(visitor);
  if (visitor.shown_bytes > 0 && !output_.is_full()) {
    visitor.link.send(OutputTaken{static_cast<std::uint32_t>(std::exchange(visitor.shown_bytes, 0))});
  }
}

// What is said of one that has failed may fail on its way to another one.
void FrontDesk::part_from_failed() {
  const auto is_due = [](const Visitor& visitor) { return visitor.link.failed() && !visitor.has_parted; };
  for (auto due = visitors_.begin(); due != visitors_.end();) {
    due = std::ranges::find_if(visitors_, is_due);
    if (due != visitors_.end()) part_from(*due);
  }
  std::erase_if(visitors_, [](const Visitor& visitor) { return visitor.has_parted; });
}

void FrontDesk::part_from(Visitor& visitor) {
  visitor.has_parted = true;
  std::erase_if(other_jobs_, [&](const auto& job) { return job.second.visitor == &visitor; });
  if (visitor.number < 0) return;
  pass_on_status(visitor.number, nullptr);
  if (roll_.over()) return;
  const bool seated =
      roll_.running() && std::ranges::find(roll_.seats(), visitor.number, &Seat::host) != roll_.seats().end();
  roll_.lose(visitor.number, visitor.link.why(), visitor.link.went_silent(), steady_clock().now());
  if (seated) {
    announce(describe(roll_.outcome().lost.back()));
    tell_event(JobEvent::Kind::loss);
  } else {
    announce(fmt::format("host {} has gone: {}", visitor.hello->host, visitor.link.why()));
  }
}

void FrontDesk::receive(Visitor& visitor, const AgentMessage& message) {
  if (const auto* hello = std::get_if<Hello>(&message); hello != nullptr && !visitor.hello) {
    greet(visitor, *hello);
  } else if (const auto* gathers = std::get_if<Gathers>(&message); gathers != nullptr && !visitor.hello) {
    const bool is_rival = gathers->rdzv_id == options_.rdzv_id;
    if (!is_rival) other_jobs_.try_emplace(gathers->rdzv_id, OtherJob{gathers->port, &visitor});
    // The job was gathered before, beside another one whose agent held the endpoint.
    yields_ = yields_ || (is_rival && is_alone());
    visitor.link.send(Elsewhere{is_rival && yields_ ? gathers->port : port_of(gathers->rdzv_id)});
  } else if (const auto* status = std::get_if<AskStatus>(&message); status != nullptr && !visitor.hello) {
    answer(visitor, *status);
  } else if (const auto* stop = std::get_if<StopJob>(&message); stop != nullptr && !visitor.hello) {
    answer(visitor, *stop);
  } else if (visitor.number >= 0) {
    if (const auto* output = std::get_if<Output>(&message)) visitor.shown_bytes += output->lines.size();
    if (const auto* done = std::get_if<HostDone>(&message)) visitor.hello->master_port = done->master_port;
    hear(visitor.number, message);
  }
}

void FrontDesk::greet(Visitor& visitor, const Hello& hello) {
  if (hello.rdzv_id != options_.rdzv_id) return visitor.link.send(Elsewhere{port_of(hello.rdzv_id)});
  std::optional<Refused> refused;
  const int number = next_number_++;
  if (const auto why = objection(hello, own_hello_)) {
    refused = Refused{*why};
  } else {
    refused = roll_.arrive(entry_of(number, hello), steady_clock().now());
  }
  const std::string who = fmt::format("host {} ({}, pid {})", hello.host, visitor.link.peer_address(), hello.pid);
  if (refused) {
    visitor.link.send(*refused);
    if (refused_.insert(who).second) announce(fmt::format("{} cannot take part: {}", who, refused->why));
    return;
  }
  visitor.hello = hello;
  visitor.number = number;
  visitor.link.send(Welcome{number, job_id_});
  take_over(hello.handover);
  const std::size_t here = roll_.hosts().size();
  announce(fmt::format("{} has come: {} of {} host{}", who, here, range_text(options_.least, options_.most),
                       options_.most == 1 ? "" : "s"));
  if (here > static_cast<std::size_t>(options_.most)) {
    announce(fmt::format("host {} waits until another one goes", hello.host));
  }
}

void FrontDesk::hear(int host, const AgentMessage& message) {
  const TimePoint now = steady_clock().now();
  if (const auto* ended = std::get_if<RankEnded>(&message)) {
    roll_.rank_ended(host, ended->generation, ended->end, now);
  } else if (const auto* crashed = std::get_if<RankStack>(&message)) {
    roll_.rank_crashed(host, crashed->generation, crashed->rank, {crashed->lines.begin(), crashed->lines.end()});
  } else if (const auto* done = std::get_if<HostDone>(&message)) {
    if (host == 0) own_hello_.master_port = done->master_port;
    roll_.host_done(host, done->generation, now);
  } else if (const auto* ask = std::get_if<AskToStop>(&message)) {
    hear_request(host, ask->signal, now);
  } else if (std::holds_alternative<Reached>(message)) {
    if (const HostEntry* back = roll_.find(host)) announce(fmt::format("host {} reaches all others again", back->name));
    roll_.reach(host, now);
  } else if (const auto* status = std::get_if<HostStatus>(&message)) {
    pass_on_status(host, status);
  } else if (const auto* counts = std::get_if<RankCounts>(&message)) {
    tell_monitor(host, *counts);
  } else if (const auto* output = std::get_if<Output>(&message)) {
    output_.show(output->stream, output->lines);
  } else if (hang_ && roll_.find(host) != nullptr) {
    hang_->hear(*roll_.find(host), message, now);
  }
}

void FrontDesk::look_for_hang() {
  if (!hang_ || !roll_.undisturbed()) return;
  const TimePoint now = steady_clock().now();
  const JobHang::Result result = hang_->look(roll_.busy(), now);
  tell_monitor(result);
  for (const std::string& line : result.lines) output_.say(line);
  if (result.stacks_first_of) tell_seated(TellStacks{*result.stacks_first_of});
  if (!result.verdict.empty()) roll_.hang(result.verdict, result.blamed, now);
}

void FrontDesk::obey() {
  for (;;) {
    const std::vector<RollOrder> orders = roll_.take_orders(steady_clock().now());
    if (orders.empty()) return;
    for (const RollOrder& order : orders) obey(order);
  }
}

void FrontDesk::obey(const RollOrder& order) {
  switch (order.kind) {
    case RollOrder::Kind::start: return try_to_start();
    case RollOrder::Kind::stop: return tell_seated(StopRanks{order.signal});
    case RollOrder::Kind::end: return tell_seated(EndRanks{});
    case RollOrder::Kind::kill: return order.host < 0 ? tell_seated(KillRanks{}) : tell(order.host, KillRanks{});
    case RollOrder::Kind::dismiss: return dismiss(order.host);
    case RollOrder::Kind::keep_out: return keep_out(order.host, order.other);
    case RollOrder::Kind::report: return report();
    case RollOrder::Kind::finish: return finish();
  }
}

// What keeps the first attempt from starting is the caller's; a later one leaves the job as the one before has ended.
void FrontDesk::try_to_start() {
  try {
    start();
  } catch (const Error& error) {
    if (outcomes_.empty()) throw;
    roll_.abandon(exit_code_of(outcomes_.back(), options_.stop_exit_code),
                  fmt::format("cannot restart: {}", error.what()));
    finish();
  }
}

void FrontDesk::start() {
  const std::vector<Seat>& seats = roll_.seats();
  const std::string address = store_address();
  store_ = std::make_unique<JobStore>(address, options_.token, job_id_, world_size(seats), roll_.generation());
  const Hello* first = hello_from(seats.front().host);
  StartRanks start{.generation = roll_.generation(),
                   .restarts = roll_.restarts(),
                   .nodes = static_cast<int>(seats.size()),
                   .world_size = world_size(seats),
                   .store = store_->endpoint(),
                   .master_addr = options_.master_addr,
                   .master_port = options_.master_port != 0 ? options_.master_port : first->master_port,
                   .restart_reason = outcomes_.empty() ? "" : restart_reason(outcomes_.back()),
                   .wants_counts = options_.monitor != nullptr};
  if (start.master_addr.empty()) start.master_addr = post_ ? address_of(seats.front().host) : store_->host();
  hang_.reset();
  if (options_.hang) {
    hang_.emplace(*options_.hang, roll_.generation(), start.world_size, steady_clock().now());
    start.tell_hang_after_ms = hang_->tell_after_ms();
  }
  if (post_) {
    announce(fmt::format("{}{} rank{} on {} host{}: {}", roll_.generation() == 0 ? "" : "begins again with ",
                         start.world_size, start.world_size == 1 ? "" : "s", seats.size(), seats.size() == 1 ? "" : "s",
                         describe_seats(seats, roll_.hosts())));
  }
  for (const Seat& seat : seats) {
    start.node_rank = seat.node_rank;
    start.first_rank = seat.first_rank;
    tell(seat.host, start);
  }
  tell_event(roll_.generation() == 0 ? JobEvent::Kind::start : JobEvent::Kind::restart);
}

void FrontDesk::report() {
  store_.reset();
  hang_.reset();
  // Why a host is lost was said when it was; what follows from that is no news.
  if (roll_.outcome().lost.empty() || roll_.failed_first()) {
    for (const std::string& line : internal::report(roll_.outcome())) output_.say(line, LogLevel::error);
  }
  outcomes_.push_back(roll_.outcome());
  if (roll_.over() || options_.max_restarts == 0 || roll_.restarts() == 0) return;
  if (roll_.outcome().lost.empty() && roll_.outcome().failed()) {
    announce(fmt::format("restart {} of {}", roll_.restarts(), options_.max_restarts));
  }
}

void FrontDesk::finish() {
  const JobResult& result = roll_.result();
  if (!outcomes_.empty()) outcomes_.back().stop_signal = roll_.outcome().stop_signal;
  std::string text = result.text;
  if (!text.empty()) output_.say(text);
  if (const RankEnd* cause = roll_.outcome().first_failure(); text.empty() && cause != nullptr) {
    text = describe_failure(*cause);
  } else if (text.empty()) {
    text = roll_.outcome().hang;
  }
  if (result.goes_on) return leave_to_others();
  const Farewell farewell{result.exit_code, text};
  tell_event(JobEvent::Kind::end);
  inbox_.push_back(farewell);
  for (Visitor& visitor : visitors_) {
    if (visitor.waits_for_end) visitor.link.send(farewell);
    if (visitor.number < 0) continue;
    if (!roll_.was_seated(visitor.number)) visitor.link.send(Notice{"this host was not needed: it has run nothing"});
    visitor.link.send(farewell);
  }
}

// The others close their links when they have read the farewell; closed here, they might lose it.
void FrontDesk::close() {
  const Deadline deadline = Deadline::after(kCloseTimeout);
  for (;;) {
    std::erase_if(visitors_, [](const Visitor& visitor) {
      return visitor.link.failed() || (visitor.number < 0 && !visitor.waits_for_end);
    });
    if (visitors_.empty() || deadline.expired()) return;
    std::vector<pollfd> set;
    for (const Visitor& visitor : visitors_) set.push_back(visitor.link.wanted());
    ::poll(set.data(), set.size(), deadline.poll_timeout_ms());
    for (Visitor& visitor : visitors_) {
      visitor.link.tend();
      while (visitor.link.take()) {
      }
    }
  }
}

void FrontDesk::tell(int host, const AgentMessage& message) {
  if (host == 0) return inbox_.push_back(message);
  for (Visitor& visitor : visitors_) {
    if (visitor.number == host) visitor.link.send(message);
  }
}

void FrontDesk::tell_seated(const AgentMessage& message) {
  for (const Seat& seat : roll_.seats()) tell(seat.host, message);
}

void FrontDesk::tell_of_waiting() {
  const std::string missing = roll_.waits_for();
  if (missing.empty() || !tell_waiting_at_.expired()) return;
  tell_waiting_at_ = Deadline::after(kTellWaitingAgain);
  std::string line = fmt::format("waiting for {} at {}", missing, to_string(options_.endpoint));
  if (is_loopback(post_->address()) && is_loopback(store_address())) {
    line += fmt::format(", which is {} here: other hosts do not reach it; name an address of the network",
                        post_->address());
  }
  announce(line);
}

// The address at which the other hosts have reached this one.
std::string FrontDesk::store_address() const {
  if (!post_) return "localhost";
  if (!options_.local_addr.empty()) return options_.local_addr;
  for (const Visitor& visitor : visitors_) {
    if (visitor.number >= 0 && !is_loopback(visitor.link.own_address())) return visitor.link.own_address();
  }
  return post_->address();
}

}  // namespace lockstep::internal
