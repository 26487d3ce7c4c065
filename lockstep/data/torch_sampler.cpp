#include "lockstep/data/torch_sampler.h"

#include <ATen/ops/full.h>
#include <torch/serialize/input-archive.h>
#include <torch/serialize/output-archive.h>

#include <string>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

constexpr const char* kEpoch = "lockstep_epoch";
constexpr const char* kPosition = "lockstep_position";

std::int64_t read_number(torch::serialize::InputArchive& archive, const char* name) {
  at::Tensor number;
  const bool found = archive.try_read(name, number, /*is_buffer=*/true);
  if (!found || number.numel() != 1 || number.scalar_type() != at::kLong) {
    throw Error(ErrorKind::invalid_argument,
                std::string("the archive is not of a sampler of Lockstep: it has no number ") + name);
  }
  return number.item<std::int64_t>();
}

}  // namespace

void write_progress(torch::serialize::OutputArchive& archive, const SamplerProgress& progress) {
  archive.write(kEpoch, at::full({1}, progress.epoch, at::kLong), /*is_buffer=*/true);
  archive.write(kPosition, at::full({1}, progress.position, at::kLong), /*is_buffer=*/true);
}

SamplerProgress read_progress(torch::serialize::InputArchive& archive, std::size_t size) {
  const SamplerProgress progress{read_number(archive, kEpoch), read_number(archive, kPosition)};
  if (progress.position < 0 || static_cast<std::uint64_t>(progress.position) > size) {
    throw Error(ErrorKind::invalid_argument, "the archive's sampler stands at index " +
                                                 std::to_string(progress.position) + ", this one has " +
                                                 std::to_string(size) + " indices");
  }
  return progress;
}

void check_new_size(std::optional<std::size_t> wanted, std::size_t dataset_size) {
  if (!wanted || *wanted == dataset_size) return;
  throw Error(ErrorKind::invalid_argument, "this sampler is of a data set of " + std::to_string(dataset_size) +
                                               " samples; make a new one for " + std::to_string(*wanted));
}

}  // namespace lockstep
