#include "lockstep/comm/group/uncaught.h"

#include <array>
#include <atomic>
#include <cstddef>
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
  std::vector<const UncaughtWatch*> all;  // protected by mutex
  // The handlers that were there before ours, the last one at the end. Set under the mutex, read without it.
  std::array<std::atomic<std::terminate_handler>, 8> handlers{};
  std::atomic<std::size_t> handler_count{0};
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

// A program's own handler may go on to the one before it, which is this one: then the next older one follows.
[[noreturn]] void on_terminate() {
  static thread_local std::size_t calls = 0;
  const std::size_t call = calls++;
  if (call == 0) abort_watched_groups();
  const std::size_t count = watches().handler_count.load();
  const auto before = call < count ? watches().handlers[count - 1 - call].load() : nullptr;
  if (before != nullptr) before();
  std::abort();
}

// If there are too many handlers, the program's stays alone.
void install_handler() {
  if (std::get_terminate() == on_terminate) return;
  auto& handlers = watches().handlers;
  const std::terminate_handler before = std::get_terminate();
  const std::size_t count = watches().handler_count.load();
  std::size_t place = 0;
  while (place < count && handlers[place].load() != before) ++place;
  if (place == handlers.size()) return;
  for (; place + 1 < count; ++place) handlers[place] = handlers[place + 1].load();
  handlers[place] = before;
  if (place == count) watches().handler_count = count + 1;
  std::set_terminate(on_terminate);
}

// Unless the program has put its own in its place. The oldest stays known: a handler that the program has kept may lead
// here still.
void remove_handler() {
  if (std::get_terminate() != on_terminate) return;
  const std::size_t count = watches().handler_count.load();
  std::set_terminate(watches().handlers[count - 1].load());
  if (count > 1) watches().handler_count = count - 1;
}

}  // namespace

UncaughtWatch::UncaughtWatch(ProcessGroup group) : group_(std::move(group)) {
  const std::lock_guard lock(watches().mutex);
  watches().all.push_back(this);
  install_handler();
}

UncaughtWatch::~UncaughtWatch() {
  const std::lock_guard lock(watches().mutex);
  std::erase(watches().all, this);
  if (watches().all.empty()) remove_handler();
}

}  // namespace lockstep::internal
