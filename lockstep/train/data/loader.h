// loader() cuts a sampler's order into batches and assembles them ahead of the training loop on worker threads.
// sampler + dataset -> batches, in the sampler's order whatever the number of workers.
//   for (auto& [x, y] : lockstep::loader(train, sampler, {.batch_size = 64, .workers = 2})) ...
// The dataset is one of ours or of torch::data (see torch_dataset.h). The sampler records the batches that the loop has
// taken: those that it has accessed or skipped, not the one that ++ has fetched ahead.
// A Loader refers to the dataset and the sampler, which must outlive it. One thread iterates; get_batch() runs on all
// workers at once and must be thread-safe. Each pass starts and ends its own worker threads (about 20 us each).
// Random numbers that get_batch() draws from torch, with one thread, are the batch's own (see batch_numbers.h): the
// same whatever the number of workers, and independent of the training loop's.
// An exception in get_batch() reaches the loop as an Error that names the batch, with the original nested inside.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <utility>
#include <vector>

#include "lockstep/train/data/loader_inputs.h"
#include "lockstep/train/data/loader_pass.h"
#include "lockstep/train/data/loader_plan.h"
#include "lockstep/train/data/torch_dataset.h"

namespace lockstep {

template <BatchDataset Dataset, class Sampler>
  requires IndexSampler<Sampler>
class Loader {
 public:
  using Batch = internal::BatchOf<Dataset>;

  class Iterator {  // one pass; move-only; destroying it early stops the workers
   public:
    using value_type = Batch;
    using difference_type = std::ptrdiff_t;

    Batch& operator*() const { return pass_->take(); }
    Batch* operator->() const { return &pass_->take(); }
    Iterator& operator++() {
      pass_->advance();
      return *this;
    }
    void operator++(int) { ++*this; }
    friend bool operator==(const Iterator& iterator, std::default_sentinel_t) { return iterator.pass_->has_ended(); }

   private:
    friend class Loader;
    using Pass = internal::LoaderPass<Dataset>;
    explicit Iterator(std::unique_ptr<Pass> pass) : pass_(std::move(pass)) { pass_->advance(); }
    std::unique_ptr<Pass> pass_;
  };

  Loader(const Dataset& dataset, Sampler& sampler, const LoaderOptions& options)
      : Loader(std::shared_ptr<const Dataset>(std::shared_ptr<void>(), &dataset), sampler, options) {}
  Loader(std::shared_ptr<const Dataset> dataset, Sampler& sampler, const LoaderOptions& options)
      : source_{std::move(dataset), std::make_shared<SamplerPosition>(), options},
        sampler_(&sampler),
        first_batch_(std::make_shared<std::int64_t>(options.first_batch)) {
    plan();
    source_.options.pin_memory = options.pin_memory && internal::can_pin<Batch>();
  }
  std::size_t size() const { return plan().batches(); }  // in the next pass
  // Throws Error{invalid_argument} if the sampler yields an index that the dataset does not have.
  Iterator begin() const {
    std::vector<std::int64_t> order;
    order.reserve(sampler_->size());
    for (auto it = sampler_->begin(), end = sampler_->end(); it != end; ++it) order.push_back(*it);
    const LoaderPlan planned = plan();
    planned.check_order(order, source_.dataset->size());
    *first_batch_ = 0;
    auto source = source_;
    source.position = position_of(*sampler_, source_.position);
    source.position->start = 0;
    const auto numbers = internal::pass_numbers(*sampler_, source.position->passes++);
    return Iterator(std::make_unique<typename Iterator::Pass>(source, planned, numbers, std::move(order)));
  }
  std::default_sentinel_t end() const { return {}; }

 private:
  LoaderPlan plan() const {
    LoaderOptions options = source_.options;
    options.first_batch = *first_batch_;
    return {sampler_->size(), options, position_of(*sampler_, source_.position)->start};
  }

  internal::LoaderSource<Dataset> source_;  // its position is for a sampler that keeps none
  Sampler* sampler_;
  std::shared_ptr<std::int64_t> first_batch_;  // of the next pass, of all copies
};

template <BatchDataset Dataset, class Sampler>
Loader<Dataset, Sampler> loader(const Dataset& dataset, Sampler& sampler, const LoaderOptions& options = {}) {
  return Loader<Dataset, Sampler>(dataset, sampler, options);
}

// The same over a dataset of torch::data, of which each worker has a copy.
template <TorchBatchDataset Dataset, class Sampler>
Loader<TorchDataset<Dataset>, Sampler> loader(const Dataset& dataset, Sampler& sampler,
                                              const LoaderOptions& options = {}) {
  return {std::make_shared<const TorchDataset<Dataset>>(dataset), sampler, options};
}
template <class Dataset, class Sampler>
void loader(const Dataset&& dataset, Sampler& sampler, const LoaderOptions& options = {}) = delete;

}  // namespace lockstep
