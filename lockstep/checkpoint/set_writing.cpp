#include "lockstep/checkpoint/set_writing.h"

#include <chrono>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/checked.h"
#include "lockstep/base/format.h"
#include "lockstep/base/log.h"
#include "lockstep/base/machine.h"
#include "lockstep/checkpoint/one_writer.h"
#include "lockstep/checkpoint/set_directory.h"
#include "lockstep/checkpoint/tensor_types.h"
#include "lockstep/formats/safetensors_file.h"
#include "lockstep/group/object_codecs.h"

namespace lockstep::internal {
namespace {

using Json = nlohmann::json;

std::string part_name(int rank, int size) { return fmt::format("part-{:05}-of-{:05}.safetensors", rank, size); }

// This rank's file, and what it tells of it.
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

// What write_part() tells, or why there is no part.
Json try_part(const SaveJob& job, const std::string& hidden, int rank, const std::optional<Error>& failure) {
  try {
    if (failure) throw *failure;
    return write_part(job, hidden, rank);
  } catch (const Error& error) {
    return {{"error", error.what()}, {"kind", static_cast<int>(error.kind())}};
  } catch (const std::exception& error) {
    return {{"error", error.what()}, {"kind", static_cast<int>(ErrorKind::internal)}};
  }
}

// With the files that ranks have written. A rank that could not: its error.
void take_results(Manifest& manifest, const std::vector<Json>& results) {
  std::map<std::size_t, std::size_t> files;  // by rank
  for (std::size_t rank = 0; rank < results.size(); ++rank) {
    const Json& result = results[rank];
    if (result.contains("error")) {
      throw Error(checked_error_kind(result.at("kind").get<int>(), {"part of a checkpoint", static_cast<int>(rank)}),
                  fmt::format("rank {}: {}", rank, result.at("error").get<std::string>()));
    }
    if (result.at("bytes").get<std::uint64_t>() == 0) continue;
    files[rank] = manifest.files.size();
    manifest.files.push_back({.name = part_name(static_cast<int>(rank), manifest.world_size),
                              .bytes = result.at("bytes").get<std::uint64_t>(),
                              .rank = static_cast<int>(rank),
                              .host = result.at("host").get<std::string>()});
  }
  for (auto& [name, tensor] : manifest.tensors) {
    for (Piece& piece : tensor.pieces) {
      piece.digest = results[piece.file].at("digests").at(piece_name(name, tensor, piece)).get<std::string>();
      piece.file = files.at(piece.file);
    }
  }
}

std::filesystem::path publish(SaveJob& job, SetDirectory& set, const std::vector<Json>& results) {
  try {
    take_results(job.manifest, results);
  } catch (const Json::exception& error) {
    throw Error(ErrorKind::corrupt_data, std::string("what a rank tells of its part of a checkpoint: ") + error.what());
  }
  job.manifest.written["time"] = time_of_writing();
  const std::filesystem::path path = set.publish(serialise(job.manifest, job.key ? &*job.key : nullptr));
  try {
    prune_sets(job.directory, job.retention, path);
  } catch (const Error& error) {
    log_warning(
        fmt::format("{} is saved, but older checkpoints could not be removed: {}", path.string(), error.what()));
  }
  return path;
}

// What rank 0 has done, on all ranks; what it threw, as an error of all.
std::string from_rank_0(const ProcessGroup& group, std::string_view what, const std::function<std::string()>& action) {
  Json told;
  std::optional<Error> mine;
  if (group.rank() == 0) {
    try {
      told = {{"text", action()}};
    } catch (const Error& error) {
      mine = error;
      told = {{"error", error.what()}, {"kind", static_cast<int>(error.kind())}};
    }
  }
  told = broadcast_object(group, told, 0, {.name = what});
  if (mine) throw *mine;
  const Origin origin("checkpoint of all ranks", 0);
  try {
    if (!told.contains("error")) return told.at("text").get<std::string>();
    throw Error(checked_error_kind(told.at("kind").get<int>(), origin),
                "rank 0: " + told.at("error").get<std::string>());
  } catch (const Json::exception& error) {
    throw_corrupt(origin, error.what());
  }
}

}  // namespace

std::filesystem::path run_save(SaveJob& job, const ProcessGroup& group, const std::optional<Error>& failure) {
  std::unique_ptr<SetDirectory> set;  // on rank 0
  const std::string hidden = from_rank_0(group, "directory of a checkpoint", [&] {
    set = std::make_unique<SetDirectory>(job.directory, job.manifest.step);
    return set->path().string();
  });
  const std::vector<Json> results =
      all_gather_object(group, try_part(job, hidden, group.rank(), failure), {.name = "parts of a checkpoint"});
  return from_rank_0(group, "checkpoint", [&] { return publish(job, *set, results).string(); });
}

std::filesystem::path run_save_alone(SaveJob& job) {
  constexpr Duration kPatience = std::chrono::minutes(10);
  const WriterTurn turn(job.directory, Deadline::after(kPatience));
  const auto identity = writer_identity(EnvironmentReader());
  const std::filesystem::path path = set_path(job.directory, job.manifest.step);
  if (turn.is_saved(job.manifest.step, identity)) {
    log_info(
        fmt::format("{} was saved by another rank of this job, and is not written again; ranks that save together "
                    "call save() with their group",
                    path.string()));
    return path;
  }
  job.manifest.written.insert(identity.begin(), identity.end());
  SetDirectory set(job.directory, job.manifest.step);
  return publish(job, set, {write_part(job, set.path(), 0)});
}

}  // namespace lockstep::internal
