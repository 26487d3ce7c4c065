// LoaderPass is one pass of a loader: the batches of an order, one after the other. order -> get_batch() on workers ->
// the loop. It keeps the sampler's position. For one thread; the dataset is used by all workers at once.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "lockstep/base/deadline.h"
#include "lockstep/base/observe/live_numbers.h"
#include "lockstep/train/data/batch_numbers.h"
#include "lockstep/train/data/loader_inputs.h"
#include "lockstep/train/data/loader_plan.h"
#include "lockstep/train/data/pin_memory.h"
#include "lockstep/train/data/prefetcher.h"

namespace lockstep::internal {

template <BatchDataset Dataset>
using BatchOf = decltype(std::declval<const Dataset&>().get_batch(std::declval<std::span<const std::int64_t>>()));

// The state that passes of a loader share.
template <BatchDataset Dataset>
struct LoaderSource {
  std::shared_ptr<const Dataset> dataset;
  std::shared_ptr<SamplerPosition> position;
  LoaderOptions options;
};

template <BatchDataset Dataset>
class LoaderPass {
 public:
  using Batch = BatchOf<Dataset>;

  LoaderPass(const LoaderSource<Dataset>& source, const LoaderPlan& plan, const PassNumbers& numbers,
             std::vector<std::int64_t> order)
      : source_(source),
        plan_(plan),
        numbers_(numbers),
        order_(std::move(order)),
        prefetcher_(plan.batches(), std::min<std::size_t>(source.options.workers, plan.batches()),
                    static_cast<std::size_t>(source.options.workers) * source.options.prefetch,
                    [this](std::size_t number) { return make(number); }) {
    source_.position->taken = std::min(plan_.begin_of(0), order_.size());
  }

  bool has_ended() const { return !current_; }
  // The current batch; from now on the loop has taken it. REQUIRES: !has_ended().
  Batch& take() {
    if (std::exchange(counted_, given_) != given_) take_samples(plan_.batch(order_, given_ - 1).size());
    source_.position->taken = plan_.end_of(given_ - 1);
    return *current_;
  }
  // To the next one, which the loop has not taken yet.
  void advance() {
    if (given_ != 0) source_.position->taken = plan_.end_of(given_ - 1);
    current_.reset();  // before waiting, so that its memory is free for the batches to come
    const auto& options = source_.options;
    if (given_ != 0 && given_ < plan_.batches() && options.stop_when && options.stop_when()) return;
    current_ = prefetcher_.next(Deadline::after(options.timeout));
    if (current_) {
      ++given_;
    } else {
      source_.position->taken = order_.size();  // including the skipped rest
    }
  }

 private:
  Batch make(std::size_t number) const {
    const std::span<const std::int64_t> chosen = plan_.batch(order_, number);
    try {
      const BatchNumbers own(seed_of_batch(numbers_, chosen));
      Batch batch = source_.dataset->get_batch(chosen);
      if (source_.options.pin_memory) pin(batch);
      return batch;
    } catch (...) {
      plan_.throw_batch_failed(number, chosen);
    }
  }

  const LoaderSource<Dataset> source_;
  const LoaderPlan plan_;
  const PassNumbers numbers_;
  const std::vector<std::int64_t> order_;
  std::size_t given_ = 0;  // batches
  std::size_t counted_ = 0;
  std::optional<Batch> current_;
  Prefetcher<Batch> prefetcher_;
};

}  // namespace lockstep::internal
