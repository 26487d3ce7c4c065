#include "lockstep/comm/adapters/torch_store.h"

#include <utility>

#include "lockstep/base/error.h"

namespace lockstep::internal {
namespace {

Bytes to_bytes(const TorchStoreView::Value& value) { return {value.begin(), value.end()}; }
TorchStoreView::Value to_value(const Bytes& bytes) { return {bytes.begin(), bytes.end()}; }

}  // namespace

TorchStoreView::TorchStoreView(std::shared_ptr<lockstep::Store> store, Milliseconds timeout)
    : c10d::Store(timeout), store_(std::move(store)) {}

c10::intrusive_ptr<c10d::Store> TorchStoreView::clone() {
  return c10::make_intrusive<TorchStoreView>(store_, timeout_);
}

void TorchStoreView::set(const std::string& key, const Value& value) { store_->set(key, to_bytes(value), deadline()); }

TorchStoreView::Value TorchStoreView::compareSet(const std::string& key, const Value& expected, const Value& desired) {
  return to_value(store_->compare_set(key, to_bytes(expected), to_bytes(desired), deadline()));
}

TorchStoreView::Value TorchStoreView::get(const std::string& key) { return to_value(store_->get(key, deadline())); }

std::int64_t TorchStoreView::add(const std::string& key, std::int64_t value) {
  return store_->add(key, value, deadline());
}

bool TorchStoreView::deleteKey(const std::string& key) { return store_->remove(key, deadline()); }

bool TorchStoreView::check(const std::vector<std::string>& keys) { return store_->check(keys, deadline()); }

std::int64_t TorchStoreView::getNumKeys() {
  throw Error(ErrorKind::internal, "libtorch called getNumKeys(), which the job's store does not support");
}

void TorchStoreView::wait(const std::vector<std::string>& keys) { wait(keys, timeout_); }

void TorchStoreView::wait(const std::vector<std::string>& keys, const Milliseconds& timeout) {
  const std::vector<std::string> missing = store_->wait(keys, Deadline::after(timeout));
  if (missing.empty()) return;
  throw Error(ErrorKind::timeout, "no process has set \"" + missing.front() + "\" in the job's store");
}

}  // namespace lockstep::internal
