#include "lockstep/train/ddp/timing/step_times.h"

#include <array>
#include <cstddef>

namespace lockstep {
namespace {

using Part = double StepTimes::*;

constexpr std::array<Part, internal::kStepPhases> kComputing = {
    &StepTimes::data, &StepTimes::forward, &StepTimes::backward, &StepTimes::optimizer, &StepTimes::compute};
constexpr std::array<Part, 3> kNotComputing = {&StepTimes::waiting, &StepTimes::communicating, &StepTimes::hidden};

}  // namespace

StepTimes& StepTimes::operator+=(const StepTimes& other) {
  steps += other.steps;
  for (const Part part : kComputing) this->*part += other.*part;
  for (const Part part : kNotComputing) this->*part += other.*part;
  return *this;
}

StepTimes StepTimes::mean() const {
  if (steps == 0) return {};
  StepTimes mean = *this;
  const auto count = static_cast<double>(steps);
  mean.steps = 1;
  for (const Part part : kComputing) mean.*part /= count;
  for (const Part part : kNotComputing) mean.*part /= count;
  return mean;
}

namespace internal {

double& part_of(StepTimes& times, StepPhase phase) { return times.*kComputing.at(static_cast<std::size_t>(phase)); }
double part_of(const StepTimes& times, StepPhase phase) {
  return times.*kComputing.at(static_cast<std::size_t>(phase));
}

}  // namespace internal
}  // namespace lockstep
