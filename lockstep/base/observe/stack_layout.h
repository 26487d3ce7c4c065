// The layout of the stacks of one rank: memory after its flight recording that the launcher shares with it, and that
// is never saved. The rank's handler writes (stack_recorder.h), the launcher reads (stack_reader.h).
//
//   StackHeader | kThreads x ThreadSlot | CrashSlot
//
// The launcher begins a round: it sets `taken` to 0 and raises `round`. Each thread that it then signals takes the next
// slot, and makes its version 2 round + 1 while it writes, 2 round + 2 when it is done. Frames are code addresses, the
// innermost first: that one is exact, the others are where a call returns to.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "lockstep/base/observe/flight_layout.h"

namespace lockstep::internal::stacks {

inline constexpr std::uint64_t kMagic = 0x314b5453434f4cULL;  // "LOCSTK1"
inline constexpr std::uint32_t kVersion = 1;
inline constexpr std::size_t kThreads = 192;  // more are left out
inline constexpr std::size_t kFrames = 30;
inline constexpr std::size_t kCrashFrames = 64;
inline constexpr std::size_t kModules = 32;

struct ThreadSlot {
  std::atomic<std::uint64_t> version;
  std::int32_t thread;
  std::uint32_t count;
  std::uint64_t frames[kFrames];
};

// A part of a file that is mapped as code.
struct Module {
  std::uint64_t begin;
  std::uint64_t end;
  std::uint64_t offset;  // of `begin` in the file
  char path[232];        // ends with a zero
};

// Who has the slot of a crash.
inline constexpr std::uint32_t kNoCrash = 0;
inline constexpr std::uint32_t kLastCrash = 1;     // a thread whose crash ends the process
inline constexpr std::uint32_t kHandledCrash = 2;  // one whose crash the program handles; it gives the slot back

struct CrashSlot {
  std::atomic<std::uint32_t> taken;
  std::int32_t signal;
  std::int32_t thread;
  std::int32_t sender;    // the process that sent the signal; 0: a fault of the thread itself
  std::uint64_t address;  // of a fault: that could not be used
  std::atomic<std::uint32_t> frames_made;
  std::atomic<std::uint32_t> modules_made;
  char name[16];  // of the thread
  std::uint64_t frames[kCrashFrames];
  Module modules[kModules];  // those that contain the frames
};

struct StackHeader {
  std::uint64_t magic;
  std::uint32_t version;
  std::uint32_t bytes;
  std::atomic<std::int32_t> signal;  // that makes a thread record its frames; 0: there is no handler
  std::atomic<std::int32_t> pid;     // of the process that has the handler; written last
  std::atomic<std::uint64_t> round;
  std::atomic<std::uint32_t> taken;
  std::uint32_t reserved;
};

struct StackArea {
  StackHeader header;
  ThreadSlot threads[kThreads];
  CrashSlot crash;
};
static_assert(sizeof(ThreadSlot) == 256 && sizeof(Module) == 256);

inline constexpr std::size_t kOffset = (flight::kBytes + 4095) / 4096 * 4096;
// Of memory that has both.
inline constexpr std::size_t kSharedBytes = kOffset + sizeof(StackArea);

}  // namespace lockstep::internal::stacks
