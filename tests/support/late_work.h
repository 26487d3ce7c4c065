// Work of streams that is late: it is not there when the host has queued it, as the collectives of a communicator,
// which wait for other ranks. A Gate opens when one is over; events carry the gates of a stream to others. What is
// computed at once, as everything else on the fake device, first waits for the gates of its stream; so does the host,
// which on a real device would be ahead of that. Thread-safe.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

namespace lockstep::testing {

class LateWork {
 public:
  class Gate {
   public:
    void open();
    bool is_open() const;
    // After a minute it ends the process: somebody has forgotten the gate.
    void await() const;

   private:
    mutable std::mutex mutex_;
    mutable std::condition_variable opened_;
    bool is_open_ = false;  // protected by mutex_
  };
  using Gates = std::vector<std::shared_ptr<Gate>>;

  // Those that are not open, of what is on the stream now.
  Gates of(std::size_t stream);
  void add(std::size_t stream, const Gates& gates);

 private:
  std::mutex mutex_;
  std::map<std::size_t, Gates> gates_;  // by stream; protected by mutex_
};

void await_all(const LateWork::Gates& gates);
bool are_open(const LateWork::Gates& gates);

}  // namespace lockstep::testing
