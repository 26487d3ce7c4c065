#include "tests/support/stream_order.h"

#include <algorithm>
#include <iterator>

namespace lockstep::testing {
namespace {

void join(StreamOrder::Clock& clock, const StreamOrder::Clock& other) {
  std::ranges::transform(clock, other, clock.begin(), [](auto a, auto b) { return std::max(a, b); });
}

std::uintptr_t address_of(const void* memory) { return reinterpret_cast<std::uintptr_t>(memory); }

}  // namespace

StreamOrder::Work::Work(StreamOrder& order, Stream stream, std::string name)
    : order_(order), stream_(stream), name_(std::move(name)) {
  const std::lock_guard lock(order_.mutex_);
  Clock& clock = order_.clock(stream);
  join(clock, order_.known_);
  time_ = ++clock[stream];
}

void StreamOrder::Work::when_known(std::function<void()> then) {
  const std::lock_guard lock(order_.mutex_);
  order_.waiting_.emplace_back(*this, std::move(then));
}

StreamOrder::Clock StreamOrder::record(Stream stream) {
  const std::lock_guard lock(mutex_);
  return clock(stream);
}

void StreamOrder::block(Stream stream, const Clock& event) {
  const std::lock_guard lock(mutex_);
  join(clock(stream), event);
}

void StreamOrder::synchronize(const Clock& event) {
  const std::lock_guard all_called(calling_mutex_);  // also what another thread has found due
  std::vector<std::function<void()>> due;
  {
    const std::lock_guard lock(mutex_);
    join(known_, event);
    const auto is_due = [&](const auto& each) { return each.first.time_ <= known_[each.first.stream_]; };
    for (auto& each : waiting_) {
      if (is_due(each)) due.push_back(std::exchange(each.second, nullptr));
    }
    std::vector<std::pair<Work, std::function<void()>>> rest;
    for (auto& each : waiting_) {
      if (each.second) rest.emplace_back(std::move(each));
    }
    waiting_.swap(rest);
  }
  for (const auto& each : due) each();
}

bool StreamOrder::is_known(const Clock& event) {
  const std::lock_guard lock(mutex_);
  return std::ranges::equal(event, known_, std::less_equal());
}

void StreamOrder::allocate(const void* begin, std::size_t bytes, Stream stream) {
  const std::lock_guard lock(mutex_);
  blocks_[address_of(begin)] = {address_of(begin) + bytes, stream, {}, {}};
}

void StreamOrder::use_on(const void* begin, Stream stream) {
  const std::lock_guard lock(mutex_);
  if (Block* const block = block_of(address_of(begin))) block->used_on.push_back(stream);
}

std::vector<StreamOrder::Stream> StreamOrder::users_of(const void* begin) {
  const std::lock_guard lock(mutex_);
  const Block* const block = block_of(address_of(begin));
  if (block == nullptr) return {};
  std::vector<Stream> users = block->used_on;
  users.push_back(block->stream);
  return users;
}

void StreamOrder::free(const void* begin) {
  const std::lock_guard lock(mutex_);
  const auto found = blocks_.find(address_of(begin));
  if (found == blocks_.end()) return;
  const Block& block = found->second;
  Clock of_owner = clock(block.stream);
  join(of_owner, known_);
  for (const Stream user : block.used_on) join(of_owner, clock(user));
  for (const Access& each : block.accesses) {
    if (is_before(each, of_owner)) continue;
    report("memory of stream " + std::to_string(block.stream) + " is freed while stream " +
           std::to_string(each.stream) + (each.writes ? " writes" : " reads") + " it (" + each.name + ")");
  }
  blocks_.erase(found);
}

void StreamOrder::access(const Work& work, const void* memory, std::size_t bytes, bool writes) {
  if (bytes == 0) return;
  const std::lock_guard lock(mutex_);
  Block* const block = block_of(address_of(memory));
  if (block == nullptr) return;  // the host's
  const Access mine{address_of(memory), address_of(memory) + bytes, work.stream_, work.time_, writes, work.name_};
  const Clock& now = clock(work.stream_);
  std::erase_if(block->accesses, [&](const Access& each) {
    const bool overlaps = each.begin < mine.end && mine.begin < each.end;
    if (!overlaps) return false;
    const bool is_ordered = is_before(each, now);
    if (!is_ordered && (writes || each.writes)) {
      report("stream " + std::to_string(mine.stream) + (writes ? " writes " : " reads ") + std::to_string(bytes) +
             " bytes (" + mine.name + ") that stream " + std::to_string(each.stream) +
             (each.writes ? " writes (" : " reads (") + each.name + ")");
    }
    // Who comes later and waits for this work has waited for that, too.
    return is_ordered && (writes || !each.writes) && mine.begin <= each.begin && each.end <= mine.end;
  });
  block->accesses.push_back(mine);
}

StreamOrder::Block* StreamOrder::block_of(std::uintptr_t address) {
  const auto after = blocks_.upper_bound(address);
  if (after == blocks_.begin()) return nullptr;
  Block& block = std::prev(after)->second;
  return address < block.end ? &block : nullptr;
}

void StreamOrder::report(const std::string& race) {
  if (std::ranges::find(races_, race) == races_.end()) races_.push_back(race);
}

std::vector<std::string> StreamOrder::take_races() {
  const std::lock_guard lock(mutex_);
  return std::exchange(races_, {});
}

}  // namespace lockstep::testing
