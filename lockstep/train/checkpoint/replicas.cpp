#include "lockstep/train/checkpoint/replicas.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <atomic>
#include <future>
#include <span>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/base/signal_block.h"
#include "lockstep/comm/group/object_codecs.h"
#include "lockstep/comm/group/process_group.h"
#include "lockstep/formats/safetensors/digest.h"
#include "lockstep/train/checkpoint/normal_mode.h"
#include "lockstep/train/checkpoint/part_copies.h"
#include "lockstep/train/checkpoint/tensor_types.h"
#include "lockstep/train/checkpoint/together.h"

namespace lockstep::internal {
namespace {

constexpr std::int64_t kChunkBytes = 4 << 20;  // of what must be copied to be read

bool is_plain(const at::Tensor& tensor) {
  return tensor.layout() == at::kStrided && tensor.is_cpu() && tensor.is_contiguous() && !tensor.is_conj() &&
         !tensor.is_neg();
}

bool is_on_host(const SaveJob& job) {
  const auto is_there = [](const SaveJob::Part& piece) { return piece.tensor.is_cpu(); };
  return std::ranges::all_of(job.of_others, is_there) && std::ranges::all_of(job.parts, is_there);
}

// As write_part() has it, of the same bytes.
std::string digest_of(const SaveJob::Part& piece) {
  const at::Tensor& tensor = piece.tensor;
  if (is_plain(tensor)) return xxh3_128(bytes_of(tensor));
  if (tensor.dim() == 0) return xxh3_128(bytes_of(plain_copy(piece.name, tensor)));
  RunningDigest digest;
  const auto row_bytes = static_cast<std::int64_t>(tensor.nbytes()) / std::max<std::int64_t>(tensor.size(0), 1);
  const std::int64_t rows = std::max<std::int64_t>(kChunkBytes / std::max<std::int64_t>(row_bytes, 1), 1);
  for (std::int64_t first = 0; first < tensor.size(0); first += rows) {
    const at::Tensor some = tensor.narrow(0, first, std::min(rows, tensor.size(0) - first));
    digest.add(bytes_of(plain_copy(piece.name, some)));
  }
  return digest.digits();
}

Error different_replicas_error(const std::string& piece, const std::vector<int>& ranks) {
  return Error(
      ErrorKind::desync,
      fmt::format(
          "a checkpoint was not saved because parameters or optimizer state differ between ranks. The first "
          "difference: '{}', where rank 0 has other values than rank {}. Usual causes: an optimizer, a scheduler or an "
          "averager that runs on some ranks only, or with different settings; a model that is not wrapped, or that "
          "starts from different values; Embedding with max_norm, whose forward changes its weights; random numbers of "
          "a rank that go into parameters; a step before AsyncSaver::wait_for_copy(). If ranks are to differ for a "
          "while, as between two averagings of a model, save after one, or save the values of rank 0: "
          "SaveOptions::if_ranks_differ = IfRanksDiffer::rank_0",
          piece, fmt::join(ranks, ", ")),
      {.operation = "comparing the replicas of a save"});
}

}  // namespace

std::future<ReplicaDigests> replica_digests_beside(const SaveJob& job) {
  const std::launch how = is_on_host(job) ? std::launch::async | std::launch::deferred : std::launch::deferred;
  const SignalBlock block = SignalBlock::of_new_thread();
  return std::async(how, [&job] { return replica_digests(job, 1); });
}

ReplicaDigests replica_digests(const SaveJob& job, int threads) {
  std::vector<std::pair<const SaveJob::Part*, std::string>> pieces;
  for (const SaveJob::Part& piece : job.of_others) pieces.emplace_back(&piece, "");
  if (job.manifest.digest != DigestKind::xxh3_128) {
    for (const SaveJob::Part& piece : job.parts) {
      if (piece.is_replicated) pieces.emplace_back(&piece, "");
    }
  }
  std::atomic<std::size_t> next = 0;
  const auto work = [&] {
    const NormalMode normal_mode;
    const at::NoGradGuard no_grad;
    for (std::size_t i = next++; i < pieces.size(); i = next++) {
      const SaveJob::Part& piece = *pieces[i].first;
      pieces[i].second = digest_of(piece);
      if (!piece.is_copied) require_unchanged(piece);
    }
  };
  std::vector<std::future<void>> helpers;
  const std::size_t most = is_on_host(job) ? static_cast<std::size_t>(std::max(threads, 1)) : 1;
  for (std::size_t i = 1; i < std::min(most, pieces.size()); ++i) {
    const SignalBlock block = SignalBlock::of_new_thread();
    helpers.push_back(std::async(std::launch::async | std::launch::deferred, work));
  }
  work();
  for (std::future<void>& helper : helpers) helper.get();
  ReplicaDigests digests;
  for (auto& [piece, digest] : pieces) digests.emplace(piece->name, std::move(digest));
  return digests;
}

std::string joint_digest(const ReplicaDigests& digests) {
  RunningDigest all;
  for (const auto& [name, digest] : digests) all.add(std::as_bytes(std::span(digest)));
  return all.digits();
}

void require_same_replicas(const ProcessGroup& group, const std::vector<std::string>& joint,
                           const ReplicaDigests& mine) {
  if (std::ranges::all_of(joint, [&](const std::string& each) { return each == joint.front(); })) return;
  const ReplicaDigests of_rank_0 = group.broadcast_object(mine, 0, {.name = "digests of rank 0"});
  const std::vector<std::string> told = gather_together(group, "digests of a checkpoint", [&] {
    const auto [theirs, here] = std::ranges::mismatch(of_rank_0, mine);
    return here == mine.end() ? std::string() : here->first;
  });
  std::string first;
  for (const std::string& piece : told) {
    if (!piece.empty() && (first.empty() || piece < first)) first = piece;
  }
  std::vector<int> ranks;
  for (std::size_t rank = 0; rank < told.size(); ++rank) {
    if (told[rank] == first) ranks.push_back(static_cast<int>(rank));
  }
  throw different_replicas_error(first, ranks);
}

}  // namespace lockstep::internal
