// A StreamOrder knows which work on the streams of devices is ordered, and names work on the same memory that is not:
// a missing dependency is found in every run, not only where the work happens to overlap. For that each stream has a
// vector clock (Mattern, "Virtual Time and Global States of Distributed Systems", 1988), which events carry from one
// stream to another, and so has the host, which waits for streams and events.
//
// All threads of the host share one clock: whether they wait for each other is not seen here. Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace lockstep::testing {

class StreamOrder {
 public:
  using Stream = std::size_t;  // any number below kMostStreams
  using Clock = std::vector<std::uint64_t>;
  static constexpr Stream kMostStreams = 128;

  // Work on a stream, which begins with the constructor: after what the stream has, and what the host has waited for.
  class Work {
   public:
    Work(StreamOrder& order, Stream stream, std::string name);
    void reads(const void* begin, std::size_t bytes) { order_.access(*this, begin, bytes, false); }
    void writes(const void* begin, std::size_t bytes) { order_.access(*this, begin, bytes, true); }
    // Calls it, in the thread of the host that first waits for this work.
    void when_known(std::function<void()> then);

   private:
    friend class StreamOrder;
    StreamOrder& order_;
    Stream stream_;
    std::uint64_t time_ = 0;
    std::string name_;
  };

  // The state of an event that is recorded now.
  Clock record(Stream stream);
  // What comes on the stream from now on waits for the event.
  void block(Stream stream, const Clock& event);
  // The host waits.
  void synchronize(Stream stream) { synchronize(record(stream)); }
  void synchronize(const Clock& event);
  // Whether the host has waited for it, or for something later.
  bool is_known(const Clock& event);

  // Memory of a stream: once it is freed, the stream may use it for something else at once. So work of other streams
  // must be over for that stream, or for one that was announced by use_on(): memory is used again when all that such
  // streams had when it was freed is over.
  void allocate(const void* begin, std::size_t bytes, Stream stream);
  void use_on(const void* begin, Stream stream);
  void free(const void* begin);
  // Its own stream, and those that were announced.
  std::vector<Stream> users_of(const void* begin);

  // What was not ordered, since the last call: "stream 1 writes 16 bytes (all_reduce) that stream 0 reads (aten::mul)".
  std::vector<std::string> take_races();

 private:
  struct Access {
    std::uintptr_t begin, end;
    Stream stream;
    std::uint64_t time;
    bool writes;
    std::string name;
  };
  struct Block {
    std::uintptr_t end;
    Stream stream;
    std::vector<Stream> used_on;
    std::vector<Access> accesses;  // that later work may have to wait for
  };

  void access(const Work& work, const void* begin, std::size_t bytes, bool writes);
  Block* block_of(std::uintptr_t address);
  Clock& clock(Stream stream) { return clocks_[stream]; }
  bool is_before(const Access& access, const Clock& clock) const { return access.time <= clock[access.stream]; }
  void report(const std::string& race);

  std::mutex calling_mutex_;  // of who calls what was to be called; before mutex_
  std::mutex mutex_;
  // All protected by mutex_.
  std::vector<Clock> clocks_ = std::vector<Clock>(kMostStreams, Clock(kMostStreams));  // by stream
  Clock known_ = Clock(kMostStreams);                                                  // the host's
  std::map<std::uintptr_t, Block> blocks_;                                             // by address
  std::vector<std::pair<Work, std::function<void()>>> waiting_;
  std::vector<std::string> races_;
};

}  // namespace lockstep::testing
