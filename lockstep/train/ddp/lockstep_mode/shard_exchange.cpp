#include "lockstep/train/ddp/lockstep_mode/shard_exchange.h"

#include <ATen/Parallel.h>
#include <ATen/ThreadLocalState.h>
#include <ATen/ops/empty.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <optional>
#include <system_error>
#include <thread>
#include <utility>

#include "lockstep/base/clock.h"
#include "lockstep/base/error.h"
#include "lockstep/base/failure_note.h"
#include "lockstep/base/format.h"

namespace lockstep::internal {
namespace {

struct Here {
  ShardExchange* exchange = nullptr;  // null in an isolated shard
  int shard = 0;
};
thread_local std::optional<Here> t_here;  // NOLINT: each shard has a thread of its own

}  // namespace

IsolatedShard::IsolatedShard() { t_here = Here{}; }
IsolatedShard::~IsolatedShard() { t_here.reset(); }

ShardExchange::ShardExchange(ProcessGroup group, int first, int own)
    : group_(std::move(group)), first_(first), own_(own) {
  for (int shard = 0; shard < own_; ++shard) tokens_.emplace_back(0);
}

bool ShardExchange::is_within_shard() { return t_here.has_value(); }

ShardExchange* ShardExchange::current() {
  if (!t_here) return nullptr;
  if (t_here->exchange != nullptr) return t_here->exchange;
  throw Error(
      ErrorKind::invalid_argument,
      "lockstep mode: a synchronised layer was not part of the model when it was wrapped. Convert the model before "
      "DistributedDataParallel; a custom module that calls sync_batch_norm() must derive from SyncBatchNormTag");
}

// Of a thread.
struct ShardExchange::Settings {
  at::ThreadLocalState of_torch = {};
  int threads = at::get_num_threads();
  std::vector<c10::Stream> streams = {};
};

void ShardExchange::run(const OfShard& body, OfShard resume, OfShard suspend, const std::vector<at::Device>& devices) {
  resume_ = std::move(resume);
  suspend_ = std::move(suspend);
  Settings settings;
  for (const at::Device device : devices) {
    settings.streams.push_back(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
  }
  {
    std::vector<std::jthread> shards;
    try {
      for (int shard = 0; shard < own_; ++shard) {
        shards.emplace_back([&, shard] { run_shard(shard, body, settings); });
      }
    } catch (const std::system_error& error) {
      fail(static_cast<int>(shards.size()),
           std::make_exception_ptr(system_error("lockstep mode: cannot start a shard's thread", error.code().value())));
    }
    is_over_.assign(static_cast<std::size_t>(own_), true);
    for (std::size_t shard = 0; shard < shards.size(); ++shard) is_over_[shard] = false;
    tokens_.front().release();
  }
  if (failure_ != nullptr) std::rethrow_exception(failure_);
}

void ShardExchange::run_shard(int shard, const OfShard& body, const Settings& settings) {
  tokens_[static_cast<std::size_t>(shard)].acquire();
  t_here = Here{this, shard};
  try {
    if (failure_ == nullptr) {
      const at::ThreadLocalStateGuard guard(settings.of_torch);
      at::set_num_threads(settings.threads);
      const c10::MultiStreamGuard streams(settings.streams);
      resume_(shard);
      try {
        body(shard);
        come_to(shard, "the end of its callback");
      } catch (...) {
        fail(shard, std::current_exception());
      }
      suspend_(shard);
    }
  } catch (...) {
    fail(shard, std::current_exception());
  }
  is_over_[static_cast<std::size_t>(shard)] = true;
  pass_token(shard);
}

at::Tensor ShardExchange::gather(const at::Tensor& row, const SyncBatchNormTag* layer, std::string_view what) {
  const int shard = t_here->shard;
  const bool has_name = layer != nullptr && !layer->place().name.empty();
  come_to(shard, fmt::format("{} of {}, {} numbers", what, has_name ? layer->place().name : "a layer without name",
                             row.numel()));
  if (shard == 0) own_rows_ = at::empty({own_, row.numel()}, row.options());
  own_rows_.select(0, shard).copy_(row);
  suspend_(shard);
  if (shard + 1 == own_) gather_from_ranks(shard);
  pass_token(shard);
  tokens_[static_cast<std::size_t>(shard)].acquire();
  resume_(shard);
  if (failure_ != nullptr) std::rethrow_exception(failure_);
  return rows_;
}

void ShardExchange::come_to(int shard, const std::string& place) {
  if (failure_ != nullptr) std::rethrow_exception(failure_);  // the callback has caught it
  if (shard == 0) place_ = place;
  if (place == place_) return;
  throw Error(ErrorKind::desync,
              fmt::format("lockstep mode: shard {} reached {}, but shard {} reached {}; all shards must go through the "
                          "same synchronised layers in the same order",
                          first_ + shard, place, first_, place_));
}

void ShardExchange::gather_from_ranks(int shard) {
  const TimePoint start = steady_clock().now();
  try {
    rows_ = at::empty({own_ * group_.size(), own_rows_.size(1)}, own_rows_.options());
    group_.all_gather_into(rows_, own_rows_, {.name = place_});
  } catch (const Error& error) {
    const Error told(
        error.kind(),
        fmt::format("lockstep mode: shards {} to {} reached {}: {}", first_, first_ + own_ - 1, place_, error.what()),
        error.detail());
    failure_ = std::make_exception_ptr(told);  // which all ranks have
  } catch (...) {
    fail(shard, std::current_exception());
  }
  communication_seconds_ += seconds(steady_clock().now() - start);
}

// To the next shard that has not ended, which may be the same one.
void ShardExchange::pass_token(int shard) {
  for (int step = 1; step <= own_; ++step) {
    const auto next = static_cast<std::size_t>((shard + step) % own_);
    if (is_over_[next]) continue;
    tokens_[next].release();
    return;
  }
}

void ShardExchange::fail(int shard, std::exception_ptr failure) {
  if (failure_ != nullptr) return;
  failure_ = std::move(failure);
  if (group_.size() == 1) return;
  group_.abort(fmt::format("lockstep mode: shard {} on rank {} failed: {}", first_ + shard, group_.rank(),
                           text_of_exception(failure_)));
}

}  // namespace lockstep::internal
