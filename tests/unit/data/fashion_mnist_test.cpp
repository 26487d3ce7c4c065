#include "lockstep/train/data/fashion_mnist.h"

#include <ATen/ops/equal.h>
#include <doctest/doctest.h>

#include <chrono>
#include <filesystem>
#include <random>

#include "lockstep/train/data/distributed_sampler.h"
#include "lockstep/train/data/loader.h"
#include "tests/support/expect_error.h"
#include "tests/support/temporary_directory.h"
#include "tests/unit/data/idx_fixture.h"

namespace fashion_mnist_test {

using namespace lockstep;

namespace {

constexpr std::uint32_t kImages = 0x00000803;
constexpr std::uint32_t kLabels = 0x00000801;
constexpr std::size_t kPixels = 28 * 28;

std::string pixels(std::uint32_t count) {
  std::mt19937 random(11);
  std::string bytes(count * kPixels, '\0');
  for (char& byte : bytes) byte = static_cast<char>(random());
  return bytes;
}

std::string labels(std::uint32_t count) {
  std::string bytes(count, '\0');
  for (std::uint32_t i = 0; i < count; ++i) bytes[i] = static_cast<char>(i % 10);
  return bytes;
}

void write_split(const TemporaryDirectory& directory, std::uint32_t images, const std::string& label_bytes) {
  write_gzip(directory / "train-images-idx3-ubyte.gz", idx_bytes(kImages, {images, 28, 28}, pixels(images)));
  write_plain(directory / "train-labels-idx1-ubyte",
              idx_bytes(kLabels, {static_cast<std::uint32_t>(label_bytes.size())}, label_bytes));
}

}  // namespace

TEST_CASE("a batch is the chosen images, scaled and normalised as torchvision does it") {
  const TemporaryDirectory directory;
  write_split(directory, 12, labels(12));
  const auto dataset = FashionMnist::load(directory.path(), FashionMnist::Split::train);
  CHECK(dataset.size() == 12);
  const std::vector<std::int64_t> indices = {11, 3, 3, 0};
  const FashionMnist::Batch batch = dataset.get_batch(indices);
  CHECK(batch.data.sizes().vec() == std::vector<std::int64_t>{4, 1, 28, 28});
  CHECK((batch.data.scalar_type() == at::kFloat));
  CHECK((batch.target.scalar_type() == at::kLong));
  for (std::size_t i = 0; i < indices.size(); ++i) {
    const auto row = static_cast<std::int64_t>(i);
    const at::Tensor image = dataset.images()[indices[i]].to(at::kFloat).div(255).sub(0.2860F).div(0.3530F);
    CHECK(at::equal(batch.data[row][0], image));
    CHECK(batch.target[row].item<std::int64_t>() == indices[i] % 10);
  }
  CHECK_ERROR(error_of([&] { dataset.get_batch(std::vector<std::int64_t>{12}); }), ErrorKind::invalid_argument,
              "index 12", "[0, 12)");
}

// feature: G-10
TEST_CASE("three channels repeat the grey one") {
  const TemporaryDirectory directory;
  write_split(directory, 2, labels(2));
  const auto grey = FashionMnist::load(directory.path(), FashionMnist::Split::train);
  const auto colour = FashionMnist::load(directory.path(), FashionMnist::Split::train, {.channels = 3});
  const std::vector<std::int64_t> indices = {1, 0};
  CHECK(at::equal(colour.get_batch(indices).data, grey.get_batch(indices).data.repeat({1, 3, 1, 1})));
  CHECK_ERROR(error_of([&] { FashionMnist::load(directory.path(), FashionMnist::Split::train, {.channels = 0}); }),
              ErrorKind::invalid_argument, "channels is 0");
}

TEST_CASE("damaged or unequal files are refused by name") {
  const auto error_with = [](std::uint32_t images, const std::string& label_bytes) {
    const TemporaryDirectory directory;
    write_split(directory, images, label_bytes);
    return error_of([&] { FashionMnist::load(directory.path(), FashionMnist::Split::train); });
  };
  CHECK_ERROR(error_with(3, labels(4)), ErrorKind::corrupt_data, "train-images-idx3-ubyte.gz has 3 images",
              "train-labels-idx1-ubyte has 4 labels");
  CHECK_ERROR(error_with(3, std::string("\1\12\2", 3)), ErrorKind::corrupt_data, "train-labels-idx1-ubyte", "at byte 9",
              "label 10 of sample 1", "[0, 9]");
}

TEST_CASE("a missing data set says how to get it") {
  const TemporaryDirectory directory;
  CHECK_ERROR(error_of([&] { FashionMnist::load(directory.path(), FashionMnist::Split::test); }),
              ErrorKind::invalid_argument, "t10k-images-idx3-ubyte", "apt-get install dataset-fashion-mnist",
              "--data DIR");
}

TEST_CASE("the real data set loads, or says how to get it") {
  const auto directory = FashionMnist::default_data_directory();
  if (!std::filesystem::exists(directory)) {
    CHECK_ERROR(error_of([&] { FashionMnist::load(directory, FashionMnist::Split::train); }),
                ErrorKind::invalid_argument, "apt-get install dataset-fashion-mnist");
    return;
  }
  const auto start = std::chrono::steady_clock::now();
  const auto train = FashionMnist::load(directory, FashionMnist::Split::train);
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
  MESSAGE("60 000 images decoded in ", elapsed.count(), " s");
  CHECK(train.size() == 60'000);
  CHECK(train.targets()[0].item<std::int64_t>() == 9);
  CHECK(train.images().to(at::kDouble).mean().item<double>() / 255 == doctest::Approx(0.2860).epsilon(0.001));
  CHECK(FashionMnist::load(directory, FashionMnist::Split::test).size() == 10'000);
}

// feature: Z-12
TEST_CASE("loader, sampler and dataset together: every sample once, the same with any number of workers") {
  const TemporaryDirectory directory;
  write_split(directory, 23, labels(23));
  const auto dataset = FashionMnist::load(directory.path(), FashionMnist::Split::train);
  std::vector<std::vector<at::Tensor>> runs;
  for (const int workers : {0, 1, 4}) {
    auto& run = runs.emplace_back();
    for (int rank = 0; rank < 2; ++rank) {
      DistributedSampler sampler(dataset.size(), 2, rank, {.padding = Padding::none});
      for (auto& [x, y] : loader(dataset, sampler, {.batch_size = 5, .workers = workers})) {
        CHECK(x.size(0) == y.size(0));
        run.push_back(x);
      }
    }
  }
  REQUIRE(runs[0].size() == 6);
  std::int64_t samples = 0;
  for (std::size_t i = 0; i < runs[0].size(); ++i) {
    samples += runs[0][i].size(0);
    CHECK(at::equal(runs[0][i], runs[1][i]));
    CHECK(at::equal(runs[0][i], runs[2][i]));
  }
  CHECK(samples == 23);
}

}  // namespace fashion_mnist_test
