#include "lockstep/group/uncaught.h"

#include <cstdlib>
#include <exception>
#include <mutex>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/failure_note.h"

namespace lockstep::internal {
namespace {

// Leaked on purpose: a process may terminate while static destructors run.
struct Watches {
  std::mutex mutex;
  // State below is protected by mutex.
  std::vector<const UncaughtWatch*> all;
  std::terminate_handler before = nullptr;
};

Watches& watches() {
  static Watches& instance = *new Watches;
  return instance;
}

}  // namespace

void abort_watched_groups() noexcept {
  Watches& watched = watches();
  const std::unique_lock lock(watched.mutex, std::try_to_lock);
  if (!lock.owns_lock()) return;
  try {
    const std::string text = text_of_exception();
    if (text.empty()) return;
    const std::string_view line = first_line(text);
    for (const UncaughtWatch* each : watched.all) {
      if (!each->is_here()) continue;
      // What has been noted of this exception says where it was thrown, too.
      const std::string noted = each->group_.noted_failure();
      const bool is_it = noted.find(line) != std::string::npos;
      each->group_.abort(is_it ? "it failed in " + noted : "an uncaught exception ended it: " + std::string(line));
    }
  } catch (const std::exception&) {  // no memory for the text: the process ends anyway
  }
}

namespace {

[[noreturn]] void on_terminate() {
  abort_watched_groups();
  if (const std::terminate_handler before = watches().before) before();
  std::abort();
}

}  // namespace

UncaughtWatch::UncaughtWatch(ProcessGroup group) : group_(std::move(group)) {
  const std::lock_guard lock(watches().mutex);
  watches().all.push_back(this);
  if (std::get_terminate() == on_terminate) return;
  watches().before = std::set_terminate(on_terminate);
}

UncaughtWatch::~UncaughtWatch() {
  const std::lock_guard lock(watches().mutex);
  std::erase(watches().all, this);
}

}  // namespace lockstep::internal
