#include "lockstep/train/data/fashion_mnist.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/train/data/idx_file.h"

namespace lockstep {

using namespace internal;

namespace {

constexpr std::size_t kPixels = FashionMnist::kSide * FashionMnist::kSide;
constexpr std::string_view kAdvice =
    "On Debian: apt-get install dataset-fashion-mnist. Elsewhere: pass the directory that has the files, with --data "
    "DIR.";

at::TensorOptions on_cpu(at::ScalarType type) { return at::TensorOptions().dtype(type).device(at::kCPU); }

at::Tensor read_images(const std::filesystem::path& path) {
  IdxFile file(path, {FashionMnist::kSide, FashionMnist::kSide});
  at::Tensor images = at::empty({file.dimensions()[0], FashionMnist::kSide, FashionMnist::kSide}, on_cpu(at::kByte));
  file.read({static_cast<std::byte*>(images.mutable_data_ptr()), file.size_bytes()});
  return images;
}

at::Tensor read_targets(const std::filesystem::path& path) {
  IdxFile file(path, {});
  std::vector<std::uint8_t> labels(file.size_bytes());
  file.read(std::as_writable_bytes(std::span(labels)));
  const auto bad =
      std::find_if(labels.begin(), labels.end(), [](std::uint8_t label) { return label >= FashionMnist::kClasses; });
  if (bad != labels.end()) {
    const auto index = static_cast<std::size_t>(bad - labels.begin());
    throw Error(ErrorKind::corrupt_data,
                fmt::format("{}: at byte {}: label {} of sample {} is outside [0, {}]", path.string(),
                            file.data_offset() + index, *bad, index, FashionMnist::kClasses - 1));
  }
  at::Tensor targets = at::empty({static_cast<std::int64_t>(labels.size())}, on_cpu(at::kLong));
  std::copy(labels.begin(), labels.end(), targets.mutable_data_ptr<std::int64_t>());
  return targets;
}

}  // namespace

FashionMnist FashionMnist::load(const std::filesystem::path& directory, Split split,
                                const FashionMnistOptions& options) {
  const std::string prefix = split == Split::train ? "train" : "t10k";
  const auto image_path = find_idx_file(directory, prefix + "-images-idx3-ubyte", kAdvice);
  const auto target_path = find_idx_file(directory, prefix + "-labels-idx1-ubyte", kAdvice);
  at::Tensor images = read_images(image_path);
  at::Tensor targets = read_targets(target_path);
  if (images.size(0) != targets.size(0)) {
    throw Error(ErrorKind::corrupt_data, fmt::format("{} has {} images, but {} has {} labels", image_path.string(),
                                                     images.size(0), target_path.string(), targets.size(0)));
  }
  return FashionMnist(std::move(images), std::move(targets), options);
}

std::filesystem::path FashionMnist::default_data_directory() { return "/usr/share/datasets/fashion-mnist"; }

FashionMnist::FashionMnist(at::Tensor images, at::Tensor targets, const FashionMnistOptions& options)
    : images_(std::move(images)), targets_(std::move(targets)), channels_(options.channels) {
  if (options.channels < 1) {
    throw Error(ErrorKind::invalid_argument,
                fmt::format("Fashion-MNIST: channels is {}; give 1 or more", options.channels));
  }
  if (!(options.deviation > 0)) {
    throw Error(ErrorKind::invalid_argument,
                fmt::format("Fashion-MNIST: deviation is {}; give a positive number", options.deviation));
  }
  for (std::size_t pixel = 0; pixel < normalised_.size(); ++pixel) {
    normalised_[pixel] = (static_cast<float>(pixel) / 255.0F - options.mean) / options.deviation;
  }
}

FashionMnist::Batch FashionMnist::get_batch(std::span<const std::int64_t> indices) const {
  const auto count = static_cast<std::int64_t>(indices.size());
  Batch batch{at::empty({count, channels_, kSide, kSide}, on_cpu(at::kFloat)), at::empty({count}, on_cpu(at::kLong))};
  const std::uint8_t* images = images_.const_data_ptr<std::uint8_t>();
  const std::int64_t* targets = targets_.const_data_ptr<std::int64_t>();
  float* data = batch.data.mutable_data_ptr<float>();
  std::int64_t* target = batch.target.mutable_data_ptr<std::int64_t>();
  for (const std::int64_t index : indices) {
    if (index < 0 || index >= targets_.numel()) {
      throw Error(ErrorKind::invalid_argument,
                  fmt::format("Fashion-MNIST: index {} is outside [0, {})", index, targets_.numel()));
    }
    const std::uint8_t* image = images + static_cast<std::size_t>(index) * kPixels;
    const float* first_channel = data;
    data = std::transform(image, image + kPixels, data, [this](std::uint8_t pixel) { return normalised_[pixel]; });
    for (std::int64_t channel = 1; channel < channels_; ++channel) {
      data = std::copy(first_channel, first_channel + kPixels, data);
    }
    *target++ = targets[index];
  }
  return batch;
}

}  // namespace lockstep
