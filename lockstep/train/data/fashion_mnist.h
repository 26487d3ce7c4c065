// FashionMnist holds one split of Fashion-MNIST (or of MNIST: the same files) in memory. directory -> dataset ->
// loader. load() blocks for disk reads, about a third of a second for the training split. Afterwards immutable and
// thread-safe. Error{invalid_argument}: files not found, with advice; Error{corrupt_data}: files damaged, with file and
// offset.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>

namespace lockstep {

struct FashionMnistOptions {
  int channels = 1;  // 3 repeats the grey image, for networks made for colour
  // Of the training split's pixels, scaled to [0, 1]. Batches hold (pixel / 255 - mean) / deviation.
  float mean = 0.2860F;
  float deviation = 0.3530F;
};

class FashionMnist {
 public:
  enum class Split { train, test };
  struct Batch {  // `for (auto& [x, y] : loader(...))`
    at::Tensor data;
    at::Tensor target;
  };
  static constexpr std::int64_t kClasses = 10;
  static constexpr std::int64_t kSide = 28;

  static FashionMnist load(const std::filesystem::path& directory, Split split,
                           const FashionMnistOptions& options = {});
  // Where Debian's package dataset-fashion-mnist keeps the files.
  static std::filesystem::path default_data_directory();

  std::size_t size() const { return static_cast<std::size_t>(targets_.numel()); }
  // float32 [n, channels, 28, 28] and int64 [n].
  Batch get_batch(std::span<const std::int64_t> indices) const;

  const at::Tensor& images() const { return images_; }    // uint8 [N, 28, 28]
  const at::Tensor& targets() const { return targets_; }  // int64 [N]

 private:
  FashionMnist(at::Tensor images, at::Tensor targets, const FashionMnistOptions& options);

  at::Tensor images_;
  at::Tensor targets_;
  std::int64_t channels_;
  std::array<float, 256> normalised_;  // by pixel
};

}  // namespace lockstep
