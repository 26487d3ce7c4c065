// loader() cuts a sampler's order into batches and assembles them ahead of the training loop on worker threads.
// sampler + dataset -> batches, in the sampler's order whatever the number of workers.
//   for (auto& [x, y] : lockstep::loader(train, sampler, {.batch_size = 64, .workers = 2})) ...
// The dataset is one of ours or of torch::data (see torch_dataset.h). The sampler learns what the loop has taken.
// A Loader refers to the dataset and the sampler, which must outlive it. One thread iterates; get_batch() runs on all
// workers at once and must be thread-safe. Each pass starts and ends its own worker threads (about 20 us each).
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

    Batch& operator*() const { return *pass_->current; }
    Batch* operator->() const { return &*pass_->current; }
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
      : dataset_(std::move(dataset)), sampler_(&sampler), options_(options) {
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
          position(position_of(*of.sampler_)),
          prefetcher(batches.batches(), std::min<std::size_t>(of.options_.workers, batches.batches()),
                     static_cast<std::size_t>(of.options_.workers) * of.options_.prefetch, [this](std::size_t number) {
                       const std::span<const std::int64_t> chosen = batches.batch(order, number);
                       try {
                         Batch batch = of.dataset_->get_batch(chosen);
                         if (of.options_.pin_memory) internal::pin(batch);
                         return batch;
                       } catch (...) {
                         batches.throw_batch_failed(number, chosen);
                       }
                     }) {
      position->taken = std::exchange(position->start, 0);
    }
    void advance() {
      current.reset();  // before waiting, so that its memory is free for the batches to come
      if (taken != 0 && taken < batches.batches() && of.options_.stop_when && of.options_.stop_when()) return;
      current = prefetcher.next(Deadline::after(of.options_.timeout));
      position->taken = current ? batches.end_of(taken++) : order.size();  // at its end also what it leaves out
    }

    const Loader of;
    std::vector<std::int64_t> order;
    const LoaderPlan batches;
    const std::shared_ptr<SamplerPosition> position;
    std::size_t taken = 0;  // batches
    std::optional<Batch> current;
    internal::Prefetcher<Batch> prefetcher;
  };

  LoaderPlan plan() const { return {sampler_->size(), options_, position_of(*sampler_)->start}; }

  std::shared_ptr<const Dataset> dataset_;
  Sampler* sampler_;
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
