#include "lockstep/train/checkpoint/set_writing.h"

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/base/log.h"
#include "lockstep/base/machine.h"
#include "lockstep/base/observe/live_numbers.h"
#include "lockstep/formats/safetensors/safetensors_file.h"
#include "lockstep/train/checkpoint/earlier_run.h"
#include "lockstep/train/checkpoint/normal_mode.h"
#include "lockstep/train/checkpoint/one_writer.h"
#include "lockstep/train/checkpoint/set_directory.h"
#include "lockstep/train/checkpoint/tensor_types.h"
#include "lockstep/train/checkpoint/together.h"

namespace lockstep::internal {
namespace {

using Json = nlohmann::json;

constexpr int kPruningShare = 4;  // of the time that the others may have to wait

std::string part_name(int rank, int size) { return fmt::format("part-{:05}-of-{:05}.safetensors", rank, size); }

// Writes this rank's file, and returns its description.
Json write_part(const SaveJob& job, const std::filesystem::path& hidden, int rank) {
  if (job.parts.empty()) return {{"bytes", 0}};
  std::vector<at::Tensor> storage;
  std::vector<TensorBytes> tensors;
  for (const SaveJob::Part& part : job.parts) {
    const at::Tensor& plain = storage.emplace_back(plain_copy(part.name, part.tensor));
    tensors.push_back({.name = part.name,
                       .dtype = stored_type(part.name, plain),
                       .shape = plain.sizes().vec(),
                       .bytes = bytes_of(plain)});
  }
  const WrittenFile written =
      write_safetensors(hidden / part_name(rank, job.manifest.world_size), tensors, {}, job.manifest.digest);
  return {{"bytes", written.bytes}, {"digests", written.digests}, {"host", host_name()}};
}

// With the files that ranks have written.
void take_results(Manifest& manifest, const std::vector<Json>& results) {
  std::map<std::size_t, std::size_t> files;  // by rank
  for (std::size_t rank = 0; rank < results.size(); ++rank) {
    const Json& result = results[rank];
    if (result.at("bytes").get<std::uint64_t>() == 0) continue;
    files[rank] = manifest.files.size();
    manifest.files.push_back({.name = part_name(static_cast<int>(rank), manifest.world_size),
                              .bytes = result.at("bytes").get<std::uint64_t>(),
                              .rank = static_cast<int>(rank),
                              .host = result.at("host").get<std::string>()});
  }
  for (auto& [name, tensor] : manifest.tensors) {
    for (SetPiece& piece : tensor.pieces) {
      piece.digest = results[piece.file].at("digests").at(piece_name(name, tensor, piece)).get<std::string>();
      piece.file = files.at(piece.file);
    }
  }
}

std::filesystem::path publish(SaveJob& job, SetDirectory& set, const std::vector<std::string>& told) {
  std::vector<Json> results;
  try {
    for (const std::string& each : told) results.push_back(Json::parse(each));
    take_results(job.manifest, results);
  } catch (const Json::exception& error) {
    const std::string whose = results.size() < told.size() ? fmt::format("rank {}'s", results.size()) : "a rank's";
    throw Error(
        ErrorKind::corrupt_data,
        fmt::format("{} report on its part of the checkpoint is not valid: {}; do all ranks run the same build?", whose,
                    error.what()));
  }
  job.manifest.written["time"] = time_of_writing();
  const auto hide_others = [&] { hide_earlier_run(job.directory, set_path(job.directory, job.manifest.step)); };
  return set.publish(serialise(job.manifest, job.key ? &*job.key : nullptr),
                     job.replaces_earlier_run ? std::function<void()>(hide_others) : nullptr);
}

// The set exists even if this fails.
void prune(const SaveJob& job, const std::filesystem::path& newest, Duration patience) {
  if (job.replaces_earlier_run) remove_abandoned_sets(job.directory);
  const auto failure = error_in([&] {
    prune_sets(job.directory, job.retention, newest, Deadline::after(patience / kPruningShare), job.single_files);
  });
  if (!failure) return;
  log_warning(
      fmt::format("{} is saved, but older checkpoints could not be removed: {}", newest.string(), failure->what()));
}

// Writes this rank's file, digests its replicas, into `replicas`, meanwhile, and returns their joint digest, followed
// by the result of write_part().
std::string write_and_digest(const SaveJob& job, const std::filesystem::path& hidden, int rank,
                             std::optional<ReplicaDigests>& replicas) {
  std::future<ReplicaDigests> of_others;
  if (!replicas) of_others = replica_digests_beside(job);  // writing is waiting for the disk
  const Json part = write_part(job, hidden, rank);
  if (!replicas) replicas = of_others.get();
  for (const SaveJob::Part& piece : job.parts) {
    // Those that writing does not give are there.
    if (piece.is_replicated) replicas->emplace(piece.name, part.at("digests").at(piece.name).get<std::string>());
  }
  return joint_digest(*replicas) + part.dump();
}

// Removes the joint digest from the result of each rank.
std::vector<std::string> take_joint_digests(std::vector<std::string>& told) {
  const std::size_t digits = name_of(DigestKind::xxh3_128).digits;
  std::vector<std::string> joint;
  for (std::string& each : told) {
    if (each.size() < digits) {
      throw Error(
          ErrorKind::corrupt_data,
          fmt::format("rank {}'s report on its part of the checkpoint has {} bytes, expected {} or more; do all "
                      "ranks run the same build?",
                      joint.size(), each.size(), digits));
    }
    joint.emplace_back(each, 0, digits);
    each.erase(0, digits);
  }
  return joint;
}

}  // namespace

std::filesystem::path run_save(SaveJob& job, const ProcessGroup& group, const std::optional<Error>& failure,
                               std::optional<ReplicaDigests> replicas) {
  const NormalMode normal_mode;
  std::unique_ptr<SetDirectory> set;  // on rank 0
  const std::string hidden = from_rank_0(group, "directory of a checkpoint", [&] {
    set = std::make_unique<SetDirectory>(job.directory, job.manifest.step);
    return set->path().string();
  });
  std::vector<std::string> told = gather_together(group, "parts of a checkpoint", [&] {
    if (failure) throw Error(*failure);
    return write_and_digest(job, hidden, group.rank(), replicas);
  });
  require_same_replicas(group, take_joint_digests(told), *replicas);
  const std::filesystem::path path =
      from_rank_0(group, "checkpoint", [&] { return publish(job, *set, told).string(); });
  if (group.rank() == 0) prune(job, path, group.timeout());
  count_checkpoint();
  return path;
}

std::filesystem::path run_save_alone(SaveJob& job) {
  constexpr Duration kPatience = std::chrono::minutes(10);
  const WriterTurn turn(job.directory, Deadline::after(kPatience));
  auto identity = writer_identity(EnvironmentReader());
  const std::filesystem::path path = set_path(job.directory, job.manifest.step);
  const std::uint64_t number = save_numbers().next(std::filesystem::absolute(path).lexically_normal());
  if (turn.is_saved(job.manifest.step, identity, number)) {
    log_info(
        fmt::format("{} was already saved by another rank of this job and is not written again; ranks that save "
                    "together pass their group to save()",
                    path.string()));
    return path;
  }
  if (!identity.empty()) {
    identity["save"] = std::to_string(number);
    identity.merge(moment_of_writing());
  }
  job.manifest.written.insert(identity.begin(), identity.end());
  SetDirectory set(job.directory, job.manifest.step);
  publish(job, set, {write_part(job, set.path(), 0).dump()});
  prune(job, path, kPatience);
  count_checkpoint();
  return path;
}

}  // namespace lockstep::internal
