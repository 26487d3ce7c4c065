#include "lockstep/comm/store/prefix_store.h"

#include "lockstep/comm/store/store_text.h"

namespace lockstep {

using namespace internal;

PrefixStore::PrefixStore(std::shared_ptr<Store> store, std::string_view prefix)
    : store_(std::move(store)), prefix_(std::string(prefix) + "/") {}

std::string PrefixStore::whole(std::string_view key) const {
  check_store_key(key);  // an empty key is an error here too, although "<prefix>/" would not be one
  return prefix_ + std::string(key);
}

std::vector<std::string> PrefixStore::whole(const std::vector<std::string>& keys) const {
  std::vector<std::string> result;
  result.reserve(keys.size());
  for (const std::string& key : keys) result.push_back(whole(key));
  return result;
}

void PrefixStore::set(std::string_view key, ByteView value, Deadline deadline) {
  store_->set(whole(key), value, deadline);
}

Bytes PrefixStore::get(std::string_view key, Deadline deadline) { return store_->get(whole(key), deadline); }

std::int64_t PrefixStore::add(std::string_view key, std::int64_t delta, Deadline deadline) {
  return store_->add(whole(key), delta, deadline);
}

Bytes PrefixStore::compare_set(std::string_view key, ByteView expected, ByteView desired, Deadline deadline) {
  return store_->compare_set(whole(key), expected, desired, deadline);
}

std::vector<std::string> PrefixStore::wait(const std::vector<std::string>& keys, Deadline deadline) {
  std::vector<std::string> missing = store_->wait(whole(keys), deadline);
  for (std::string& key : missing) key.erase(0, prefix_.size());
  return missing;
}

bool PrefixStore::check(const std::vector<std::string>& keys, Deadline deadline) {
  return store_->check(whole(keys), deadline);
}

bool PrefixStore::remove(std::string_view key, Deadline deadline) { return store_->remove(whole(key), deadline); }

void PrefixStore::last_will(std::string_view key, ByteView value, Deadline deadline) {
  store_->last_will(whole(key), value, deadline);
}

}  // namespace lockstep
