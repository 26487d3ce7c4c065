#include "lockstep/train/ddp/checks/model_comparison.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <sstream>

#include "lockstep/base/error.h"
#include "lockstep/base/hash.h"
#include "lockstep/train/ddp/checks/ddp_errors.h"

namespace lockstep {

using namespace internal;

namespace {

std::string line_of(const char* kind, const std::string& name, const at::Tensor& tensor) {
  std::ostringstream line;
  line << kind << ' ' << name << ' ' << tensor.sizes() << ' ' << tensor.scalar_type() << " strides " << tensor.strides()
       << (tensor.requires_grad() ? "" : " frozen") << (tensor.is_conj() ? " conjugated" : "")
       << (tensor.is_neg() ? " negated" : "");
  return line.str();
}

// One line a tensor; it must be equal on all ranks.
std::string description(const NamedTensors& parameters, const NamedTensors& buffers, const std::string& settings) {
  std::string text = settings + '\n';
  for (const auto& [name, tensor] : parameters) text += line_of("parameter", name, tensor) + '\n';
  for (const auto& [name, tensor] : buffers) text += line_of("buffer", name, tensor) + '\n';
  return text;
}

constexpr std::uint64_t kFactor = 0x9E3779B97F4A7C15ULL;

// Of the bytes of a tensor's elements. Four independent sums, since each waits for its own multiplication only.
std::uint64_t hash_of_values(const at::Tensor& tensor) {
  const at::Tensor dense = tensor.detach().cpu().contiguous();
  const auto* bytes = static_cast<const unsigned char*>(dense.const_data_ptr());
  const std::size_t count = dense.nbytes();
  std::uint64_t sums[4] = {1, 2, 3, 4};
  const auto add = [&](std::uint64_t& sum, std::uint64_t word) { sum = (std::rotl(sum, 23) ^ word) * kFactor; };
  std::size_t at = 0;
  for (; at + sizeof sums <= count; at += sizeof sums) {
    std::uint64_t words[4];
    std::memcpy(words, bytes + at, sizeof words);
    for (int i = 0; i < 4; ++i) add(sums[i], words[i]);
  }
  for (; at < count; ++at) add(sums[0], bytes[at]);
  for (int i = 1; i < 4; ++i) add(sums[0], sums[i]);
  return sums[0];
}

// The same idea for a tensor of a device, which computes it: a number (int64) on the device. Words are multiplied by
// odd factors that depend on their places, so that no change of one word keeps the sum.
at::Tensor device_hash_of_values(const at::Tensor& tensor) {
  constexpr std::int64_t kPiece = std::int64_t{1} << 22;  // words at a time, which bounds the memory that it takes
  const at::Tensor bytes = tensor.detach().contiguous().reshape({-1}).view(at::kByte);
  const at::Tensor words = bytes.numel() % 4 == 0 && bytes.storage_offset() % 4 == 0 ? bytes.view(at::kInt) : bytes;
  at::Tensor sum = at::zeros({}, words.options().dtype(at::kLong));
  for (std::int64_t begin = 0; begin < words.numel(); begin += kPiece) {
    const std::int64_t end = std::min(begin + kPiece, words.numel());
    at::Tensor factors = at::arange(begin, end, sum.options()).mul_(static_cast<std::int64_t>(kFactor));
    factors.bitwise_xor_(factors.bitwise_right_shift(29)).mul_(static_cast<std::int64_t>(kFactor)).bitwise_or_(1);
    sum = sum * static_cast<std::int64_t>(kFactor) + (words.slice(0, begin, end) * factors).sum();
  }
  return sum;
}

// On the host. It waits for devices once.
std::vector<std::int64_t> hashes_of_values(const NamedTensors& tensors) {
  std::vector<at::Tensor> on_devices;
  for (const auto& [name, tensor] : tensors) {
    if (tensor.is_cpu()) continue;
    at::Tensor hash = device_hash_of_values(tensor);
    on_devices.push_back(on_devices.empty() ? hash : hash.to(on_devices.front().device(), /*non_blocking=*/true));
  }
  const at::Tensor told = on_devices.empty() ? at::Tensor() : at::stack(on_devices).to(at::kCPU);
  const std::int64_t* next = on_devices.empty() ? nullptr : told.const_data_ptr<std::int64_t>();
  std::vector<std::int64_t> hashes;
  for (const auto& [name, tensor] : tensors) {
    hashes.push_back(tensor.is_cpu() ? static_cast<std::int64_t>(hash_of_values(tensor)) : *next++);
  }
  return hashes;
}

}  // namespace

void verify_same_model(const NamedTensors& parameters, const NamedTensors& buffers, const std::string& settings,
                       const ProcessGroup& group) {
  const auto differs = group.first_difference(description(parameters, buffers, settings));
  if (!differs) return;
  throw different_models_error(differs->rank, "entry " + std::to_string(differs->line), differs->on_rank_0,
                               differs->on_rank);
}

bool have_same_values(const at::Tensor& tensor, const ProcessGroup& group) {
  constexpr std::int64_t kMostElements = 1 << 17;
  const at::Tensor some = tensor.is_sparse() ? at::Tensor() : tensor.detach().reshape({-1}).slice(0, 0, kMostElements);
  // A rank without anything to compare sends a number that no two ranks share.
  const std::int64_t mine =
      some.defined() && some.numel() != 0 ? static_cast<std::int64_t>(hash_of_values(some)) : group.rank();
  const auto told = group.all_gather(at::tensor({mine}, at::kLong), {.name = "DDP first input"});
  return std::all_of(told.begin(), told.end(),
                     [&](const at::Tensor& theirs) { return *theirs.const_data_ptr<std::int64_t>() == mine; });
}

void verify_same_values(const NamedTensors& tensors, const ProcessGroup& group, std::uint64_t backwards,
                        std::uint64_t wrapper) {
  const std::vector<std::int64_t> hashes = hashes_of_values(tensors);
  std::int64_t all = 0;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const std::uint64_t before = std::rotl(static_cast<std::uint64_t>(all), 1);
    all = static_cast<std::int64_t>(hash_of(tensors[i].first) + before) ^ hashes[i];
  }
  const auto differs = [&](const std::vector<at::Tensor>& told, std::size_t i) {
    std::vector<int> ranks;
    for (std::size_t rank = 1; rank < told.size(); ++rank) {
      if (told[rank].const_data_ptr<std::int64_t>()[i] != told[0].const_data_ptr<std::int64_t>()[i]) {
        ranks.push_back(static_cast<int>(rank));
      }
    }
    return ranks;
  };
  const char* name = wrapper == 0 ? "DDP hash of the parameters" : "DDP hash of the parameters of wrapper";
  const at::Tensor mine = at::tensor({all}, at::kLong);
  if (differs(group.all_gather(mine, {.name = name, .number = wrapper}), 0).empty()) return;
  const auto told = group.all_gather(at::tensor(hashes, at::kLong), {.name = "DDP hashes of the parameters"});
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const std::vector<int> ranks = differs(told, i);
    if (!ranks.empty()) throw different_values_error(group.rank(), tensors[i].first, ranks, backwards);
  }
  throw Error(ErrorKind::internal,
              "the parameters differ between ranks, but comparing them one by one found no difference; did they change "
              "meanwhile?");
}

}  // namespace lockstep
