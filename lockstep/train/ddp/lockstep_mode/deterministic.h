// Deterministic algorithms of torch's operators, which devices use only if they are asked to. Settings of the process.
#pragma once

namespace lockstep::internal {

// While one lives, an operator of a device gives the same bits each time; one that cannot throws an error that names
// it. Any number at a time, in any threads; the last to end restores the settings.
class DeterministicAlgorithms {
 public:
  DeterministicAlgorithms();
  ~DeterministicAlgorithms();
  DeterministicAlgorithms(const DeterministicAlgorithms&) = delete;
  DeterministicAlgorithms& operator=(const DeterministicAlgorithms&) = delete;
};

}  // namespace lockstep::internal
