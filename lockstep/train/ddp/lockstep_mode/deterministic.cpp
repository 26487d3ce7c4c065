#include "lockstep/train/ddp/lockstep_mode/deterministic.h"

#include <ATen/Context.h>

#include <mutex>

namespace lockstep::internal {
namespace {

struct Settings {
  bool algorithms, warn_only, cudnn, benchmark;
};

std::mutex mutex;
int users = 0;          // protected by mutex
Settings before = {};  // protected by mutex

}  // namespace

DeterministicAlgorithms::DeterministicAlgorithms() {
  const std::lock_guard lock(mutex);
  if (users++ != 0) return;
  at::Context& context = at::globalContext();
  before = {context.deterministicAlgorithms(), context.deterministicAlgorithmsWarnOnly(), context.deterministicCuDNN(),
            context.benchmarkCuDNN()};
  context.setDeterministicAlgorithms(true, /*warn_only=*/false);
  context.setDeterministicCuDNN(true);
  context.setBenchmarkCuDNN(false);
}

DeterministicAlgorithms::~DeterministicAlgorithms() {
  const std::lock_guard lock(mutex);
  if (--users != 0) return;
  at::Context& context = at::globalContext();
  context.setDeterministicAlgorithms(before.algorithms, before.warn_only);
  context.setDeterministicCuDNN(before.cudnn);
  context.setBenchmarkCuDNN(before.benchmark);
}

}  // namespace lockstep::internal
