#include "lockstep/train/data/torch_sampler.h"

#include <ATen/core/ivalue.h>
#include <ATen/ops/full.h>
#include <torch/serialize/input-archive.h>
#include <torch/serialize/output-archive.h>

#include <string>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

constexpr const char* kEpoch = "lockstep_epoch";
constexpr const char* kPosition = "lockstep_position";
constexpr const char* kSize = "lockstep_size";
constexpr const char* kOrder = "lockstep_order";
constexpr const char* kPass = "lockstep_pass";

[[noreturn]] void refuse(const std::string& why) { throw Error(ErrorKind::invalid_argument, why); }

[[noreturn]] void refuse_without(const std::string& what) {
  refuse("the archive does not hold a sampler of Lockstep: it has no " + what);
}

void write_number(torch::serialize::OutputArchive& archive, const char* name, std::int64_t number) {
  archive.write(name, at::full({1}, number, at::kLong), /*is_buffer=*/true);
}

std::int64_t read_number(torch::serialize::InputArchive& archive, const char* name) {
  at::Tensor number;
  const bool found = archive.try_read(name, number, /*is_buffer=*/true);
  if (!found || number.numel() != 1 || number.scalar_type() != at::kLong) {
    refuse_without(std::string("number ") + name);
  }
  return number.item<std::int64_t>();
}

std::string read_text(torch::serialize::InputArchive& archive, const char* name) {
  c10::IValue text;
  if (!archive.try_read(name, text) || !text.isString()) refuse_without(std::string("text ") + name);
  return text.toStringRef();
}

// The same step of a sampler for another number of ranks.
std::int64_t position_for(const SamplerProgress& mine, const SamplerProgress& loaded, const std::string& where) {
  if (mine.steps == 0 || mine.size == loaded.size) return loaded.position;
  const std::int64_t step = loaded.size / mine.steps;
  if (step * mine.steps != loaded.size) refuse(where + ": the archive is damaged");
  if (loaded.position % step != 0) {
    refuse(where + ", in the middle of a step of " + std::to_string(step) +
           ". With another number of ranks it can continue only between two steps; save it there");
  }
  return loaded.position / step * (mine.size / mine.steps);
}

}  // namespace

void write_progress(torch::serialize::OutputArchive& archive, const SamplerProgress& progress) {
  write_number(archive, kEpoch, progress.epoch);
  write_number(archive, kPosition, progress.position);
  write_number(archive, kSize, progress.size);
  archive.write(kOrder, c10::IValue(progress.order));
  write_number(archive, kPass, progress.pass);
}

SamplerProgress read_progress(torch::serialize::InputArchive& archive, const SamplerProgress& mine) {
  SamplerProgress progress{.epoch = read_number(archive, kEpoch),
                           .position = read_number(archive, kPosition),
                           .size = read_number(archive, kSize),
                           .order = read_text(archive, kOrder)};
  at::Tensor pass;  // older archives have none
  if (archive.try_read(kPass, pass, /*is_buffer=*/true)) progress.pass = read_number(archive, kPass);
  const std::string where =
      "the archive's sampler is at index " + std::to_string(progress.position) + " of " + std::to_string(progress.size);
  if (progress.position < 0 || progress.position > progress.size || progress.pass < 0)
    refuse(where + ": the archive is damaged");
  const bool is_within = progress.position != 0 && progress.position != progress.size;
  if (is_within && progress.order == mine.order) progress.position = position_for(mine, progress, where);
  if (is_within && (progress.order != mine.order || progress.position > mine.size)) {
    refuse(where + ", in " + progress.order + "; this one is of " + mine.order +
           ". Load it into a sampler like that one, or save it between two epochs");
  }
  if (progress.position != 0 && !is_within) progress.position = mine.size;
  return progress;
}

void check_new_size(std::optional<std::size_t> wanted, std::size_t dataset_size) {
  if (!wanted || *wanted == dataset_size) return;
  throw Error(ErrorKind::invalid_argument, "this sampler is for a data set of " + std::to_string(dataset_size) +
                                               " samples; make a new one for " + std::to_string(*wanted));
}

}  // namespace lockstep
