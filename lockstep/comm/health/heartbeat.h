// The Heartbeat is what this rank's messenger knows of how the others fare: when it asked them for a heartbeat, and
// what they answered. A rank's messenger answers whatever its program does, unless its process or host stands still.
// Messenger <-> Heartbeat -> FailureDetector. Thread-safe; nothing here blocks.
#pragma once

#include <cstddef>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/bytes.h"
#include "lockstep/base/clock.h"
#include "lockstep/base/observe/flight_recorder.h"
#include "lockstep/comm/health/failure_detector.h"

namespace lockstep::internal {

class Heartbeat {
 public:
  static constexpr std::size_t kNameBytes = 128;
  // The answer in bytes; a messenger takes no other length.
  static constexpr std::size_t kAnswerBytes = sizeof(FlightRecord) + kNameBytes + 2 * sizeof(std::int64_t);

  // log: what this rank answers from; see FlightLog::last_collective().
  Heartbeat(int ranks, FlightLog log) : log_(std::move(log)), peers_(static_cast<std::size_t>(ranks)) {}

  // Whether to ask the rank now: not while it owes an answer.
  bool ask(int rank, TimePoint now = steady_clock().now());
  // What this rank answers.
  Bytes answer(TimePoint now = steady_clock().now()) const;
  // What a rank has answered. False if the bytes cannot be an answer.
  bool take_answer(int rank, ByteView bytes, TimePoint now = steady_clock().now());

  // The rank's connection has ended.
  void depart(int rank, Departure how, TimePoint now = steady_clock().now());

  PeerHealth health(int rank, TimePoint now = steady_clock().now()) const;

 private:
  // How long ago, when it answered, its last collective began and ended; -1: not at all.
  struct Answer {
    FlightRecord last;
    char name[kNameBytes] = {};  // its name, which the asking rank may not know; empty: none. Ends with a zero
    std::int64_t began_ago_ns = -1;
    std::int64_t ended_ago_ns = -1;
  };
  static_assert(sizeof(Answer) == kAnswerBytes);
  struct Peer {
    std::optional<TimePoint> asked;  // and not answered
    std::optional<Answer> answer;
    TimePoint answered;
    Departure departure = Departure::none;
    TimePoint departed;
  };
  static std::string place(const Answer& answer, Duration age);

  const FlightLog log_;
  mutable std::mutex mutex_;
  std::vector<Peer> peers_;  // protected by mutex_
};

}  // namespace lockstep::internal
