#include "lockstep/train/checkpoint/random_state.h"

#include <ATen/CPUGeneratorImpl.h>

#include <mutex>
#include <string_view>

#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/base/hash.h"

namespace lockstep {

using namespace internal;

namespace {

constexpr const char* kName = "random.cpu";

std::string name_of_rank(int rank) { return rank == 0 ? kName : fmt::format("{}.rank{}", kName, rank); }

at::Tensor current_state() {
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  const std::lock_guard lock(generator.mutex());
  return generator.get_state();
}

int stored_ranks(const Checkpoint& checkpoint) {
  int ranks = 0;
  while (checkpoint.tensors.contains(name_of_rank(ranks))) ++ranks;
  return ranks;
}

// Seeds of which the generator takes the low 32 bits, in which ranks differ.
std::uint64_t seed_after(const Checkpoint& checkpoint, int stored, int rank) {
  std::uint64_t seed = 0;
  for (int i = 0; i < stored; ++i) {
    const at::Tensor state = checkpoint.tensors.at(name_of_rank(i)).contiguous();
    seed = seed * 31 + hash_of({static_cast<const char*>(state.const_data_ptr()), state.nbytes()});
  }
  return seed + static_cast<std::uint64_t>(rank);
}

}  // namespace

void add_random_state(Checkpoint& checkpoint, const std::string& name) {
  checkpoint.tensors.insert_or_assign(name, current_state());
}

void load_random_state(const Checkpoint& checkpoint, const std::string& name) {
  set_random_state(random_state(checkpoint, name));
}

at::Tensor internal::random_state(const Checkpoint& checkpoint, const std::string& name) {
  const auto found = checkpoint.tensors.find(name);
  if (found == checkpoint.tensors.end()) {
    throw Error(ErrorKind::invalid_argument, fmt::format("the checkpoint has no random state '{}'", name));
  }
  try {
    at::detail::createCPUGenerator().set_state(found->second);
  } catch (const c10::Error& error) {
    throw Error(ErrorKind::invalid_argument,
                fmt::format("the checkpoint's '{}' is not the state of a CPU random number generator: {}", name,
                            error.what_without_backtrace()));
  }
  return found->second;
}

at::Tensor internal::own_random_state(const Checkpoint& checkpoint, int rank, int ranks) {
  const int stored = stored_ranks(checkpoint);
  if (stored == 0 || stored == ranks) return random_state(checkpoint, name_of_rank(rank));
  return at::detail::createCPUGenerator(seed_after(checkpoint, stored, rank)).get_state();
}

void internal::set_random_state(const at::Tensor& state) {
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  const std::lock_guard lock(generator.mutex());
  generator.set_state(state);
}

}  // namespace lockstep
