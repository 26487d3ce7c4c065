#include "round.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/comm/health/posted_errors.h"
#include "lockstep/comm/net/wire.h"
#include "lockstep/comm/rendezvous/registration_record.h"
#include "lockstep/comm/store/store_text.h"

namespace lockstep::python {

using namespace internal;

namespace {

// How long a wait lasts before its rank looks around: at first, and at most.
constexpr Duration kFirstLook = std::chrono::milliseconds(10);
constexpr Duration kLongestLook = std::chrono::milliseconds(200);

// hello/<rank>: who came last as this rank. round/<nonce>: rank 0's answer to it. here/<round>/<nonce>: it has the
// answer, which a process that has gone could not say. go/<round>: rank 0's word that all are there, or why not.
std::string hello_key(int rank) { return fmt::format("hello/{}", rank); }
std::string answer_key(const Bytes& nonce) { return "round/" + nonce; }
std::string here_key(const std::string& round, const Bytes& nonce) { return "here/" + round + "/" + nonce; }
std::string go_key(const std::string& round) { return "go/" + round; }

Bytes fresh_nonce() {
  const Token random = Token::generate();
  Bytes digits;
  for (std::size_t i = 0; i < 16; ++i) digits += fmt::format("{:02x}", random.bytes()[i]);
  return digits;
}

struct Hello {
  Bytes nonce;  // of one call of agree_on_round()
  int size = 0;
  std::string process;
};

Hello hello_of_this_call(int size) {
  std::array<char, 256> host{};
  ::gethostname(host.data(), host.size() - 1);
  return {fresh_nonce(), size, fmt::format("host {}, pid {}", host.data(), ::getpid())};
}

Bytes encode(const Hello& hello) {
  Bytes out;
  put_bytes(out, hello.nonce);
  put_u32(out, static_cast<std::uint32_t>(hello.size));
  put_bytes(out, hello.process);
  return out;
}

Hello decode_hello(ByteView encoded) {
  WireReader reader(encoded, "a rank's hello");
  Hello hello;
  hello.nonce = reader.bytes();
  hello.size = static_cast<int>(reader.u32());
  hello.process = reader.bytes();
  reader.expect_end();
  return hello;
}

// One rank's part in the making of one round.
class Meeting {
 public:
  Meeting(Store& store, int rank, int size, Deadline deadline)
      : store_(store), rank_(rank), size_(size), deadline_(deadline), me_(hello_of_this_call(size)) {
    if (store_.check({hello_key(rank)}, deadline)) before_ = look_up(rank).process;
    if (before_ == me_.process) before_.clear();
    store_.set(hello_key(rank), encode(me_), deadline);
  }

  Round lead(const std::optional<Token>& token);
  Round follow();

 private:
  Hello look_up(int rank) const { return decode_hello(store_.get(hello_key(rank), deadline_)); }
  void check_still_mine() const;
  // Waits for all keys until it is time to look around; which of them are missing then.
  std::vector<std::string> wait_a_while(const std::vector<std::string>& keys);
  Bytes wait_for_rank_0(const std::string& key);
  void answer(int rank, const Bytes& round_and_token);
  // Answers those of the absent ranks that have come; who has not said yet that it got the answer.
  std::vector<int> greet(const std::vector<int>& absent, const std::string& round, const Bytes& round_and_token);
  void give_up(const std::string& round, const Error& error);
  Error missing(const std::vector<int>& ranks) const;
  void check_sizes() const;

  Store& store_;
  const int rank_;
  const int size_;
  const Deadline deadline_;
  const TimePoint start_ = steady_clock().now();
  const Hello me_;
  std::string before_;  // another process that was this rank before, if any
  Duration look_ = kFirstLook;
  std::vector<Hello> answered_;  // by rank; on rank 0
};

void Meeting::check_still_mine() const {
  const Hello holder = look_up(rank_);
  if (holder.nonce == me_.nonce) return;
  throw Error(ErrorKind::invalid_argument,
              fmt::format("rank {} is taken: {} joined with this rank after {}; give each process a different rank",
                          rank_, holder.process, me_.process),
              {.rank = rank_, .operation = "join"});
}

std::vector<std::string> Meeting::wait_a_while(const std::vector<std::string>& keys) {
  const std::vector<std::string> missing = store_.wait(keys, std::min(deadline_, Deadline::after(look_)));
  look_ = std::min(2 * look_, kLongestLook);
  if (!missing.empty() && !deadline_.expired()) check_still_mine();
  return missing;
}

Error Meeting::missing(const std::vector<int>& ranks) const {
  const Duration waited = steady_clock().now() - start_;
  return Error(ErrorKind::timeout,
               fmt::format("rank {} waited {:.1f} s for all {} ranks to join: {} did not join. Were they started, with "
                           "the same address and world size?",
                           rank_, seconds(waited), size_, list_ranks(ranks)),
               {.rank = rank_, .peer = ranks.front(), .operation = "join", .elapsed_seconds = seconds(waited)});
}

void Meeting::answer(int rank, const Bytes& round_and_token) {
  const Hello hello = look_up(rank);
  Hello& last = answered_[static_cast<std::size_t>(rank)];
  if (hello.nonce == last.nonce) return;
  store_.set(answer_key(hello.nonce), round_and_token, deadline_);
  last = hello;
}

std::vector<int> Meeting::greet(const std::vector<int>& absent, const std::string& round,
                                const Bytes& round_and_token) {
  const auto nonce_of = [&](int rank) -> const Bytes& { return answered_[static_cast<std::size_t>(rank)].nonce; };
  std::vector<std::string> keys;
  for (const int rank : absent) {
    keys.push_back(nonce_of(rank).empty() ? hello_key(rank) : here_key(round, nonce_of(rank)));
  }
  const std::vector<std::string> missing = wait_a_while(keys);
  std::vector<int> still_absent;
  for (std::size_t i = 0; i < absent.size(); ++i) {
    const bool came = std::find(missing.begin(), missing.end(), keys[i]) == missing.end();
    const bool was_answered = !nonce_of(absent[i]).empty();
    if (came && was_answered) continue;
    // A hello may be of a process that has gone; then that of the rank which is to come takes its place.
    if (came || was_answered) answer(absent[i], round_and_token);
    still_absent.push_back(absent[i]);
  }
  return still_absent;
}

void Meeting::check_sizes() const {
  for (int rank = 1; rank < size_; ++rank) {
    const Hello& hello = answered_[static_cast<std::size_t>(rank)];
    if (hello.size == size_) continue;
    throw Error(ErrorKind::invalid_argument,
                fmt::format("the ranks disagree about the world size: rank 0 ({}) was started with {}, rank {} ({}) "
                            "with {}; start all with the same value",
                            me_.process, size_, rank, hello.process, hello.size),
                {.rank = rank_, .peer = rank, .operation = "join"});
  }
}

Round Meeting::lead(const std::optional<Token>& token) {
  const std::string round = fresh_nonce();
  Bytes answer;
  put_bytes(answer, round);
  put_bytes(answer, token ? ByteView(reinterpret_cast<const char*>(token->bytes().data()), Token::kBytes) : "");
  answered_.resize(static_cast<std::size_t>(size_));
  std::vector<int> absent;
  for (int rank = 1; rank < size_; ++rank) absent.push_back(rank);
  try {
    while (!absent.empty()) {
      absent = greet(absent, round, answer);
      if (!absent.empty() && deadline_.expired()) throw missing(absent);
    }
    check_sizes();
  } catch (const Error& error) {
    give_up(round, error);
    throw;
  }
  store_.set(go_key(round), "", deadline_);
  return {round, {}};
}

void Meeting::give_up(const std::string& round, const Error& error) {
  try {
    const std::string why = fmt::format("rank 0 has given up: {}", error.what());
    store_.set(go_key(round), encode_error(Error(error.kind(), why, {.peer = rank_})), Deadline::after(kLongestLook));
  } catch (const Error&) {  // the store is gone, and with it those who could read this
  }
}

Bytes Meeting::wait_for_rank_0(const std::string& key) {
  while (!wait_a_while({key}).empty()) {
    if (!deadline_.expired()) continue;
    std::vector<int> ranks;
    for (int rank = 0; rank < size_; ++rank) {
      if (!store_.check({hello_key(rank)}, Deadline::after(kLongestLook))) ranks.push_back(rank);
    }
    if (!ranks.empty()) throw missing(ranks);
    const Duration waited = steady_clock().now() - start_;
    throw Error(
        ErrorKind::timeout,
        fmt::format("rank {} waited {:.1f} s for rank 0 to confirm that all {} ranks have joined: it did not. Was "
                    "rank 0 started, with the same address and world size?{}",
                    rank_, seconds(waited), size_,
                    before_.empty() ? "" : fmt::format(" Or does another process have this rank: {}?", before_)),
        {.rank = rank_, .peer = 0, .operation = "join", .elapsed_seconds = seconds(waited)});
  }
  return store_.get(key, deadline_);
}

Round Meeting::follow() {
  const Bytes encoded = wait_for_rank_0(answer_key(me_.nonce));
  store_.remove(answer_key(me_.nonce), deadline_);  // it may hold the token
  WireReader reader(encoded, "rank 0's answer");
  Round round;
  round.name = reader.bytes();
  round.shared_token = reader.bytes();
  reader.expect_end();
  store_.set(here_key(round.name, me_.nonce), "", deadline_);
  const Bytes word = wait_for_rank_0(go_key(round.name));
  if (word.empty()) return round;
  throw decode_error(word, "rank 0's answer", rank_);
}

}  // namespace

Round agree_on_round(Store& store, int rank, int size, const std::optional<Token>& token, Deadline deadline) {
  Meeting meeting(store, rank, size, deadline);
  return rank == 0 ? meeting.lead(token) : meeting.follow();
}

}  // namespace lockstep::python
