#include "lockstep/group/arena_allocator.h"

#include <ATen/ops/empty.h>
#include <c10/core/Allocator.h>

#include <mutex>
#include <shared_mutex>
#include <utility>
#include <vector>

namespace lockstep {
namespace {

thread_local std::shared_ptr<ArenaHeap> t_heap;  // NOLINT: the switch is per thread by design

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
HeapRegistry& registry() {
  static HeapRegistry& instance = *new HeapRegistry;
  return instance;
}

class ArenaAllocator final : public c10::Allocator {
 public:
  explicit ArenaAllocator(c10::Allocator* next) : next_(next) { next_deleter = next->raw_deleter(); }

  c10::DataPtr allocate(std::size_t bytes) override {
    if (t_heap == nullptr || bytes < kArenaTensorBytes) return next_->allocate(bytes);
    void* block = registry().allocate(t_heap, bytes);
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
    c10::SetAllocator(c10::DeviceType::CPU, made, 1);
    return made;
  }();
  (void)installed;
}

}  // namespace

ArenaScope::ArenaScope(std::shared_ptr<ArenaHeap> heap) : previous_(t_heap) {
  if (heap == nullptr) return;
  install_once();
  t_heap = std::move(heap);
}

ArenaScope::~ArenaScope() { t_heap = std::move(previous_); }

at::Tensor empty_in_arena(const std::shared_ptr<ArenaHeap>& heap, at::IntArrayRef sizes, at::ScalarType dtype) {
  std::size_t bytes = c10::elementSize(dtype);
  for (const auto size : sizes) bytes *= static_cast<std::size_t>(size);
  void* block = bytes == 0 ? nullptr : registry().allocate(heap, bytes);
  if (block == nullptr) return at::empty(sizes, at::TensorOptions().dtype(dtype));
  auto storage = c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), bytes,
      c10::DataPtr(block, block, &ArenaAllocator::release, c10::Device(c10::kCPU)), nullptr, false);
  at::Tensor tensor = at::empty({0}, at::TensorOptions().dtype(dtype));
  tensor.unsafeGetTensorImpl()->set_storage_keep_dtype(c10::Storage(std::move(storage)));
  tensor.unsafeGetTensorImpl()->set_sizes_contiguous(sizes);
  return tensor;
}

}  // namespace lockstep
