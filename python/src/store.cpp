#include "store.h"

#include <algorithm>
#include <future>
#include <system_error>
#include <thread>

#include "lockstep/base/error.h"
#include "lockstep/base/signal_block.h"

namespace lockstep::python {

namespace {

constexpr Duration kShortestPause = std::chrono::microseconds(100), kLongestPause = std::chrono::milliseconds(100);
// For the store to say, after a wait, that keys are missing.
constexpr Duration kGrace = std::chrono::milliseconds(50);

std::vector<std::uint8_t> to_vector(ByteView bytes) { return {bytes.begin(), bytes.end()}; }

Bytes to_bytes(const std::vector<std::uint8_t>& bytes) { return {bytes.begin(), bytes.end()}; }

Deadline with_grace(Deadline deadline) {
  return deadline.is_never() ? deadline : Deadline::after(deadline.remaining() + kGrace);
}

// Whether all keys exist, until the deadline. By looking again whenever the wait has become a quarter longer: while a
// TCPStore waits, it serves none of this process's other threads, and a wait of its own that times out writes warnings.
bool wait_in(c10d::Store& store, const std::vector<std::string>& keys, Deadline deadline) {
  const TimePoint start = steady_clock().now();
  while (!store.check(keys)) {
    if (deadline.expired()) return false;
    const Duration pause = std::clamp<Duration>((steady_clock().now() - start) / 4, kShortestPause, kLongestPause);
    std::this_thread::sleep_for(std::min(pause, deadline.remaining()));
  }
  return true;
}

}  // namespace

// What `call` returns for the store; what that throws becomes an Error that names the key.
template <class Call>
auto TorchStore::call(const char* verb, std::string_view key, Deadline deadline, Call call) {
  using Result = std::invoke_result_t<Call, c10d::Store&>;
  const auto what = [&] { return std::string(verb) + " \"" + std::string(key) + "\""; };
  std::packaged_task<Result()> task([store = store_, call = std::move(call)] { return call(*store); });
  std::future<Result> result = task.get_future();
  try {
    const internal::SignalBlock block = internal::SignalBlock::of_new_thread();
    std::thread(std::move(task)).detach();
  } catch (const std::system_error& error) {
    throw Error(ErrorKind::internal, "cannot start a thread to " + what() + " in torch's store: " + error.what());
  }
  if (!deadline.is_never() && result.wait_until(deadline.when()) != std::future_status::ready) {
    throw Error(ErrorKind::timeout, "torch's store did not answer in time when asked to " + what() +
                                        "; is the process that hosts it stopped, or its host cut off?");
  }
  try {
    return result.get();
  } catch (const c10::Error& error) {
    throw Error(ErrorKind::internal, "torch's store failed to " + what() + ": " + error.what_without_backtrace());
  }
}

void TorchStore::set(std::string_view key, ByteView value, Deadline deadline) {
  call("set", key, deadline,
       [name = std::string(key), bytes = to_vector(value)](c10d::Store& store) { store.set(name, bytes); });
}

Bytes TorchStore::get(std::string_view key, Deadline deadline) {
  const auto found = call("get", key, with_grace(deadline),
                          [name = std::string(key), deadline](c10d::Store& store) -> std::optional<Bytes> {
                            if (!wait_in(store, {name}, deadline)) return std::nullopt;
                            return to_bytes(store.get(name));
                          });
  if (found) return *found;
  throw Error(ErrorKind::timeout, "no process has set \"" + std::string(key) + "\" in torch's store");
}

std::int64_t TorchStore::add(std::string_view key, std::int64_t delta, Deadline deadline) {
  return call("add to", key, deadline,
              [name = std::string(key), delta](c10d::Store& store) { return store.add(name, delta); });
}

Bytes TorchStore::compare_set(std::string_view key, ByteView expected, ByteView desired, Deadline deadline) {
  return call("compare and set", key, deadline,
              [name = std::string(key), expected = to_vector(expected), desired = to_vector(desired)](
                  c10d::Store& store) { return to_bytes(store.compareSet(name, expected, desired)); });
}

std::vector<std::string> TorchStore::wait(const std::vector<std::string>& keys, Deadline deadline) {
  if (keys.empty()) return {};
  const auto look = [keys, deadline](c10d::Store& store) {
    std::vector<std::string> missing;
    if (wait_in(store, keys, deadline)) return missing;
    for (const std::string& key : keys) {
      if (!store.check({key})) missing.push_back(key);
    }
    return missing;
  };
  try {
    return call("wait for", keys.front(), with_grace(deadline), look);
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::timeout) return keys;
    throw;
  }
}

bool TorchStore::check(const std::vector<std::string>& keys, Deadline deadline) {
  if (keys.empty()) return true;
  return call("look for", keys.front(), deadline, [keys](c10d::Store& store) { return store.check(keys); });
}

bool TorchStore::remove(std::string_view key, Deadline deadline) {
  return call("remove", key, deadline, [name = std::string(key)](c10d::Store& store) { return store.deleteKey(name); });
}

}  // namespace lockstep::python
