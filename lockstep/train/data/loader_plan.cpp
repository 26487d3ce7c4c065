#include "lockstep/train/data/loader_plan.h"

#include <algorithm>
#include <exception>
#include <string>

#include "lockstep/base/error.h"
#include "lockstep/base/failure_note.h"
#include "lockstep/base/format.h"
#include "lockstep/train/data/dataset_size.h"

namespace lockstep {

using namespace internal;

namespace {

constexpr int kMaxWorkers = 1024;
constexpr int kMaxPrefetch = 1024;

std::size_t count_batches(std::size_t samples, const LoaderOptions& options) {
  const std::size_t full = samples / options.batch_size;
  const bool has_rest = samples % options.batch_size != 0;
  return has_rest && !options.drop_last ? full + 1 : full;
}

void validate(const LoaderOptions& options) {
  if (options.batch_size == 0) throw Error(ErrorKind::invalid_argument, "loader: batch_size is 0; give 1 or more");
  if (options.workers < 0 || options.workers > kMaxWorkers) {
    throw Error(ErrorKind::invalid_argument,
                fmt::format("loader: workers is {}; it must be from 0 to {}", options.workers, kMaxWorkers));
  }
  if (options.prefetch < 1 || options.prefetch > kMaxPrefetch) {
    throw Error(ErrorKind::invalid_argument,
                fmt::format("loader: prefetch is {}; it must be from 1 to {}", options.prefetch, kMaxPrefetch));
  }
  if (options.first_batch < 0) {
    throw Error(ErrorKind::invalid_argument,
                fmt::format("loader: first_batch is {}; it must be 0 or more", options.first_batch));
  }
}

}  // namespace

void internal::throw_unknown_size() {
  throw Error(ErrorKind::invalid_argument, "the dataset returns no size, which a sampler over the whole dataset needs");
}

LoaderPlan::LoaderPlan(std::size_t samples, const LoaderOptions& options, std::size_t start)
    : samples_(samples),
      batch_size_(options.batch_size),
      first_batch_(static_cast<std::size_t>(options.first_batch)),
      start_(start),
      batches_(0) {
  validate(options);
  const std::size_t all = count_batches(samples - start, options);
  if (first_batch_ > all) {
    throw Error(ErrorKind::invalid_argument,
                fmt::format("loader: first_batch is {}, but a pass over {} samples has {} batches of {}",
                            options.first_batch, samples - start, all, options.batch_size));
  }
  batches_ = all - first_batch_;
}

std::span<const std::int64_t> LoaderPlan::batch(std::span<const std::int64_t> order, std::size_t number) const {
  return order.subspan(begin_of(number), end_of(number) - begin_of(number));
}

std::size_t LoaderPlan::end_of(std::size_t number) const { return std::min(begin_of(number) + batch_size_, samples_); }

void LoaderPlan::check_order(std::span<const std::int64_t> order, std::size_t dataset_size) const {
  if (order.size() != samples_) {
    throw Error(
        ErrorKind::invalid_argument,
        fmt::format("loader: the size() of the sampler is {}, but it yields {} indices", samples_, order.size()));
  }
  const auto bad = std::find_if(order.begin(), order.end(), [dataset_size](std::int64_t index) {
    return index < 0 || static_cast<std::uint64_t>(index) >= dataset_size;
  });
  if (bad != order.end()) {
    throw Error(ErrorKind::invalid_argument,
                fmt::format("loader: the sampler yields index {} at position {}, but the dataset has {} samples; was "
                            "the sampler made for another dataset?",
                            *bad, bad - order.begin(), dataset_size));
  }
}

void LoaderPlan::throw_batch_failed(std::size_t number, std::span<const std::int64_t> indices) const {
  const std::size_t position = begin_of(number);
  const auto [lowest, highest] = std::minmax_element(indices.begin(), indices.end());
  const std::string where =
      fmt::format("loader: batch {} (positions {} to {} of the sampler's order, dataset indices between {} and {})",
                  first_batch_ + number, position, position + indices.size() - 1, *lowest, *highest);
  try {
    throw;
  } catch (const Error& error) {
    std::throw_with_nested(Error(error.kind(), where + ": " + error.what(), error.detail()));
  } catch (...) {
    std::throw_with_nested(Error(ErrorKind::internal, where + ": " + text_of_exception()));
  }
}

}  // namespace lockstep
