#include "store.h"

#include <algorithm>

#include "lockstep/base/error.h"

namespace lockstep::python {
namespace {

constexpr std::chrono::milliseconds kLongestWait = std::chrono::hours(24);  // some stores add it to a time point

std::vector<std::uint8_t> to_vector(ByteView bytes) { return {bytes.begin(), bytes.end()}; }

Bytes to_bytes(const std::vector<std::uint8_t>& bytes) { return {bytes.begin(), bytes.end()}; }

// What `call` returns; what torch's store throws becomes an Error that names the key.
template <class Call>
auto quoting(const char* operation, std::string_view key, Call&& call) {
  try {
    return call();
  } catch (const c10::Error& error) {
    throw Error(ErrorKind::internal, std::string("torch's store failed to ") + operation + " \"" + std::string(key) +
                                         "\": " + error.what_without_backtrace());
  }
}

}  // namespace

void TorchStore::set(std::string_view key, ByteView value, Deadline) {
  quoting("set", key, [&] { store_->set(std::string(key), to_vector(value)); });
}

Bytes TorchStore::get(std::string_view key, Deadline deadline) {
  const std::string name(key);
  if (!wait({name}, deadline).empty()) {
    throw Error(ErrorKind::timeout, "nobody has set \"" + name + "\" in torch's store");
  }
  return quoting("get", key, [&] { return to_bytes(store_->get(name)); });
}

std::int64_t TorchStore::add(std::string_view key, std::int64_t delta, Deadline) {
  return quoting("add to", key, [&] { return store_->add(std::string(key), delta); });
}

Bytes TorchStore::compare_set(std::string_view key, ByteView expected, ByteView desired, Deadline) {
  return quoting("compare and set", key, [&] {
    return to_bytes(store_->compareSet(std::string(key), to_vector(expected), to_vector(desired)));
  });
}

std::vector<std::string> TorchStore::wait(const std::vector<std::string>& keys, Deadline deadline) {
  if (check(keys, deadline)) return {};
  const auto left =
      std::chrono::duration_cast<std::chrono::milliseconds>(std::min<Duration>(deadline.remaining(), kLongestWait));
  if (left > std::chrono::milliseconds::zero()) {
    try {
      store_->wait(keys, left);
      return {};
    } catch (const c10::Error&) {  // a timeout, or what check() will say again
    }
  }
  std::vector<std::string> missing;
  for (const std::string& key : keys) {
    if (!check({key}, deadline)) missing.push_back(key);
  }
  return missing;
}

bool TorchStore::check(const std::vector<std::string>& keys, Deadline) {
  if (keys.empty()) return true;
  return quoting("look for", keys.front(), [&] { return store_->check(keys); });
}

bool TorchStore::remove(std::string_view key, Deadline) {
  return quoting("remove", key, [&] { return store_->deleteKey(std::string(key)); });
}

}  // namespace lockstep::python
