// loader() cuts a sampler's order into batches and assembles them ahead of the training loop on worker threads.
// sampler + dataset -> batches, in the sampler's order whatever the number of workers.
//   for (auto& [x, y] : lockstep::loader(train, sampler, {.batch_size = 64, .workers = 2})) ...
// The dataset is one of ours or of torch::data (see torch_dataset.h). The sampler learns what the loop has taken: the
// batches that it has looked at or passed over, not the one that ++ has fetched for what comes.
// A Loader refers to the dataset and the sampler, which must outlive it. One thread iterates; get_batch() runs on all
// workers at once and must be thread-safe. Each pass starts and ends its own worker threads (about 20 us each).
// Random numbers that get_batch() draws from torch, with one thread, are the batch's own (see batch_numbers.h): the
// same whatever the number of workers, and apart from those of the training loop.
// An exception in get_batch() reaches the loop as an Error that names the batch, with the original nested inside.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "lockstep/base/deadline.h"
#include "lockstep/data/batch_numbers.h"
#include "lockstep/data/loader_inputs.h"
#include "lockstep/data/loader_plan.h"
#include "lockstep/data/pin_memory.h"
#include "lockstep/data/prefetcher.h"
#include "lockstep/data/torch_dataset.h"

namespace lockstep {

template <BatchDataset Dataset, class Sampler>
  requires IndexSampler<Sampler>
class Loader {
 public:
  using Batch = decltype(std::declval<const Dataset&>().get_batch(std::declval<std::span<const std::int64_t>>()));

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
    friend bool operator==(const Iterator& iterator, std::default_sentinel_t) { return !iterator.pass_->current; }

   private:
    friend class Loader;
    explicit Iterator(std::unique_ptr<typename Loader::Pass> pass) : pass_(std::move(pass)) { pass_->advance(); }
    std::unique_ptr<typename Loader::Pass> pass_;
  };

  Loader(const Dataset& dataset, Sampler& sampler, const LoaderOptions& options)
      : Loader(std::shared_ptr<const Dataset>(std::shared_ptr<void>(), &dataset), sampler, options) {}
  Loader(std::shared_ptr<const Dataset> dataset, Sampler& sampler, const LoaderOptions& options)
      : dataset_(std::move(dataset)),
        sampler_(&sampler),
        position_(position_of(sampler)),
        first_batch_(std::make_shared<std::int64_t>(options.first_batch)),
        options_(options) {
    plan();
    options_.pin_memory = options.pin_memory && internal::can_pin<Batch>();
  }
  std::size_t size() const { return plan().batches(); }  // in the next pass
  // Throws Error{invalid_argument} if the sampler yields an index that the dataset does not have.
  Iterator begin() const {
    std::vector<std::int64_t> order;
    order.reserve(sampler_->size());
    for (auto it = sampler_->begin(), end = sampler_->end(); it != end; ++it) order.push_back(*it);
    plan().check_order(order, dataset_->size());
    return Iterator(std::make_unique<Pass>(*this, std::move(order)));
  }
  std::default_sentinel_t end() const { return {}; }

 private:
  struct Pass {
    Pass(const Loader& loader, std::vector<std::int64_t> indices)
        : of(loader),
          order(std::move(indices)),
          batches(of.plan()),
          numbers(internal::pass_numbers(*of.sampler_, of.position_->passes++)),
          prefetcher(batches.batches(), std::min<std::size_t>(of.options_.workers, batches.batches()),
                     static_cast<std::size_t>(of.options_.workers) * of.options_.prefetch,
                     [this](std::size_t number) { return make(number); }) {
      of.position_->taken = std::min(batches.begin_of(0), order.size());
      of.position_->start = 0;
      *of.first_batch_ = 0;
    }
    Batch make(std::size_t number) const {
      const std::span<const std::int64_t> chosen = batches.batch(order, number);
      try {
        const internal::BatchNumbers own(internal::seed_of_batch(numbers, chosen));
        Batch batch = of.dataset_->get_batch(chosen);
        if (of.options_.pin_memory) internal::pin(batch);
        return batch;
      } catch (...) {
        batches.throw_batch_failed(number, chosen);
      }
    }
    void advance() {
      if (given != 0) of.position_->taken = batches.end_of(given - 1);
      current.reset();  // before waiting, so that its memory is free for the batches to come
      if (given != 0 && given < batches.batches() && of.options_.stop_when && of.options_.stop_when()) return;
      current = prefetcher.next(Deadline::after(of.options_.timeout));
      if (current) {
        ++given;
      } else {
        of.position_->taken = order.size();  // also what it leaves out
      }
    }
    Batch& take() {
      of.position_->taken = batches.end_of(given - 1);
      return *current;
    }

    const Loader of;
    std::vector<std::int64_t> order;
    const LoaderPlan batches;
    const internal::PassNumbers numbers;
    std::size_t given = 0;  // batches
    std::optional<Batch> current;
    internal::Prefetcher<Batch> prefetcher;
  };

  LoaderPlan plan() const {
    LoaderOptions options = options_;
    options.first_batch = *first_batch_;
    return {sampler_->size(), options, position_->start};
  }

  std::shared_ptr<const Dataset> dataset_;
  Sampler* sampler_;
  std::shared_ptr<SamplerPosition> position_;  // the sampler's, or of a loader and its copies
  std::shared_ptr<std::int64_t> first_batch_;  // of the next pass
  LoaderOptions options_;
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
