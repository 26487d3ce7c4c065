#include "lockstep/comm/group/arena_allocator.h"

#include <ATen/ops/empty.h>
#include <c10/core/Allocator.h>
#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <sstream>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/comm/group/torch_errors.h"

namespace lockstep::internal {

struct ArenaScope::State {
  // The scope holds the heap; a thread that allocates nothing more keeps none alive.
  std::weak_ptr<ArenaHeap> heap;
  std::atomic<bool> is_open = true;
  std::shared_ptr<State> outer;  // of the scope's thread, and for it alone
};

namespace {

using ScopeState = ArenaScope::State;

thread_local std::shared_ptr<ScopeState> t_scope;  // NOLINT: the switch is per thread by design
thread_local std::shared_ptr<ScopeState>
    t_spare;  // NOLINT: closed, for this thread's next scope: a step allocates none

void drop_closed(std::shared_ptr<ScopeState>& scope) {
  while (scope != nullptr && !scope->is_open.load(std::memory_order_acquire)) {
    scope = std::shared_ptr<ScopeState>(scope->outer);
  }
}

// Of the innermost open scope of this thread; null if there is none.
std::shared_ptr<ArenaHeap> current_heap() {
  drop_closed(t_scope);
  return t_scope == nullptr ? nullptr : t_scope->heap.lock();
}

// The heaps that have handed out tensors, so that a block can be given back knowing its address only, which is all that
// torch's raw interface passes. A heap with blocks out lives, so an address that lies in one finds it.
class HeapRegistry {
 public:
  void* allocate(const std::shared_ptr<ArenaHeap>& heap, std::size_t bytes) {
    void* block = heap->allocate(bytes);
    if (block == nullptr || find(block) != nullptr) return block;
    const std::unique_lock lock(mutex_);
    std::erase_if(heaps_, [](const auto& known) { return known.expired(); });
    heaps_.push_back(heap);
    return block;
  }

  // While it is locked, no other thread is within it.
  void lock() { mutex_.lock(); }
  void unlock() { mutex_.unlock(); }
  // In a forked child, whose thread has another id than the one that has locked it.
  void renew_lock() { std::construct_at(&mutex_); }

  // False if no heap owns the block.
  bool deallocate(void* block) {
    const std::shared_ptr<ArenaHeap> heap = find(block);
    if (heap != nullptr) heap->deallocate(block);
    return heap != nullptr;
  }

 private:
  std::shared_ptr<ArenaHeap> find(const void* block) {
    const std::shared_lock lock(mutex_);
    for (const auto& known : heaps_) {
      if (auto heap = known.lock(); heap != nullptr && heap->owns(block)) return heap;
    }
    return nullptr;
  }

  std::shared_mutex mutex_;
  std::vector<std::weak_ptr<ArenaHeap>> heaps_;  // guarded by mutex_; two threads may list one twice
};

// Never destroyed: tensors may be freed while the process ends.
HeapRegistry& registry();

HeapRegistry& make_registry() {
  auto& made = *new HeapRegistry;
  // A forked child frees the tensors that it has from its parent.
  ::pthread_atfork([] { registry().lock(); }, [] { registry().unlock(); }, [] { registry().renew_lock(); });
  return made;
}

HeapRegistry& registry() {
  static HeapRegistry& instance = make_registry();
  return instance;
}

class ArenaAllocator final : public c10::Allocator {
 public:
  explicit ArenaAllocator(c10::Allocator* next) : next_(next) { next_deleter = next->raw_deleter(); }

  c10::DataPtr allocate(std::size_t bytes) override {
    if (t_scope == nullptr || bytes < kArenaTensorBytes) return next_->allocate(bytes);
    const std::shared_ptr<ArenaHeap> heap = current_heap();
    void* block = heap == nullptr ? nullptr : registry().allocate(heap, bytes);
    if (block == nullptr) return next_->allocate(bytes);
    return {block, block, &release, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return next_deleter == nullptr ? nullptr : &release; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { default_copy_data(to, from, bytes); }

  static void release(void* block) {
    if (!registry().deallocate(block)) next_deleter(block);
  }

 private:
  static inline c10::DeleterFnPtr next_deleter = nullptr;  // set once, before any block exists
  c10::Allocator* next_;
};

void install_once() {
  static ArenaAllocator* installed = [] {
    auto* made = new ArenaAllocator(c10::GetAllocator(c10::DeviceType::CPU));
    c10::SetAllocator(c10::DeviceType::CPU, made);  // of the lowest priority: a program's own replaces it
    return made;
  }();
  (void)installed;
}

// Error{invalid_argument} unless a tensor can have as many bytes.
std::size_t bytes_of(at::IntArrayRef sizes, at::ScalarType dtype) {
  const auto element = as_errors("empty", ErrorKind::invalid_argument, [&] { return c10::elementSize(dtype); });
  std::int64_t bytes = static_cast<std::int64_t>(element), strides = bytes;
  for (const std::int64_t size : sizes) {
    const bool is_negative = size < 0;
    if (!is_negative && !__builtin_mul_overflow(strides, std::max<std::int64_t>(size, 1), &strides)) {
      bytes *= size;
      continue;
    }
    std::ostringstream text;
    text << "empty: a tensor of sizes " << sizes
         << (is_negative ? " has a negative size" : " exceeds the address space");
    throw Error(ErrorKind::invalid_argument, text.str(), {.operation = "empty"});
  }
  return static_cast<std::size_t>(bytes);
}

}  // namespace

ArenaScope::ArenaScope(std::shared_ptr<ArenaHeap> heap) : heap_(std::move(heap)) {
  if (heap_ == nullptr) return;
  install_once();
  for (std::shared_ptr<State>* scope = &t_scope;; scope = &(*scope)->outer) {
    drop_closed(*scope);
    if (*scope == nullptr) break;
  }
  state_ = t_spare == nullptr ? std::make_shared<State>() : std::move(t_spare);
  state_->heap = heap_;
  state_->is_open.store(true, std::memory_order_relaxed);
  state_->outer = std::move(t_scope);
  t_scope = state_;
}

void ArenaScope::close() noexcept {
  if (state_ == nullptr) return;
  state_->is_open.store(false, std::memory_order_release);
  drop_closed(t_scope);
  if (state_.use_count() == 1) {  // its thread has let go of it
    state_->outer.reset();
    t_spare = std::move(state_);
  }
  state_.reset();
  heap_.reset();
}

at::Tensor checked_empty(at::IntArrayRef sizes, at::ScalarType dtype) {
  (void)bytes_of(sizes, dtype);
  return as_errors("empty", ErrorKind::invalid_argument,
                   [&] { return at::empty(sizes, at::TensorOptions().dtype(dtype)); });
}

at::Tensor empty_in_arena(const std::shared_ptr<ArenaHeap>& heap, at::IntArrayRef sizes, at::ScalarType dtype) {
  const std::size_t bytes = bytes_of(sizes, dtype);
  const at::Tensor tensor = checked_empty({0}, dtype);
  void* block = bytes == 0 ? nullptr : registry().allocate(heap, bytes);
  if (block == nullptr) return checked_empty(sizes, dtype);
  auto storage = c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), bytes,
      c10::DataPtr(block, block, &ArenaAllocator::release, c10::Device(c10::kCPU)), nullptr, false);
  tensor.unsafeGetTensorImpl()->set_storage_keep_dtype(c10::Storage(std::move(storage)));
  tensor.unsafeGetTensorImpl()->set_sizes_contiguous(sizes);
  return tensor;
}

}  // namespace lockstep::internal
