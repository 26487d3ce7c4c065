#include "lockstep/train/checkpoint/checkpoint.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/complex.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/quantize_per_tensor.h>
#include <ATen/ops/tensor.h>
#include <doctest/doctest.h>

#include <cstring>
#include <fstream>
#include <limits>

#include "tests/support/command.h"
#include "tests/support/expect_error.h"
#include "tests/support/temporary_directory.h"

namespace checkpoint_test {

using namespace lockstep;
using namespace lockstep::internal;

namespace {

using Tensors = std::map<std::string, at::Tensor>;

// The tensors of state_oracle.py.
Tensors all_types() {
  return {{"f32", at::arange(6, at::kFloat).reshape({2, 3}).div(4)},
          {"f64", at::full({}, 1.0 / 3, at::kDouble)},
          {"f16", at::tensor({0.5, -2.0, 65504.0}).to(at::kHalf)},
          {"bf16", at::tensor({0.5, -2.0, 3e38, 1.0, 2.0}).to(at::kBFloat16)},
          {"i8", at::tensor({-128, 127, 1}).to(at::kChar)},
          {"i16", at::tensor({-32768, 32767}).to(at::kShort)},
          {"i32", at::tensor({std::numeric_limits<int>::min(), std::numeric_limits<int>::max()})},
          {"i64", at::tensor({std::numeric_limits<std::int64_t>::min(), std::numeric_limits<std::int64_t>::max()})},
          {"u8", at::tensor({0, 255}).to(at::kByte)},
          {"bool", at::tensor({1, 0, 1}).to(at::kBool)},
          {"empty", at::empty({0, 4})},
          {"strange \"name\" \xc3\xa9/\xc3\xbc", at::ones({1})}};
}

void check_same(const Tensors& found, const Tensors& expected) {
  REQUIRE(found.size() == expected.size());
  for (const auto& [name, tensor] : expected) {
    CAPTURE(name);
    REQUIRE(found.contains(name));
    CHECK((found.at(name).scalar_type() == tensor.scalar_type()));
    CHECK(found.at(name).sizes().vec() == tensor.sizes().vec());
    CHECK(at::equal(found.at(name), tensor));
  }
}

Checkpoint number(double value) { return {.tensors = {{"a", at::full({100}, value)}}}; }

std::vector<std::uint64_t> steps_in(const TemporaryDirectory& directory) {
  std::vector<std::uint64_t> steps;
  for (const StepFile& file : list_step_files(directory.path())) steps.push_back(file.step);
  return steps;
}

void flip_last_bit(const std::filesystem::path& path) {
  std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
  file.seekg(-1, std::ios::end);
  const char last = static_cast<char>(file.get());
  file.seekp(-1, std::ios::end);
  file.put(static_cast<char>(last ^ 1));
}

}  // namespace

TEST_CASE("tensors of every type survive, and the safetensors package reads and writes the same files") {
  const TemporaryDirectory directory;
  const std::string ours = directory / "ours.safetensors";
  const std::string theirs = directory / "theirs.safetensors";
  save_checkpoint(ours, {.tensors = all_types(), .metadata = {{"epoch", "3"}}});
  const Checkpoint loaded = load_checkpoint(ours);
  check_same(loaded.tensors, all_types());
  CHECK(loaded.metadata == std::map<std::string, std::string>{{"epoch", "3"}});

  REQUIRE(run_command({LOCKSTEP_PYTHON, LOCKSTEP_STATE_ORACLE, ours, theirs}).exit_code == 0);
  const Checkpoint foreign = load_checkpoint(theirs, Integrity::if_present);
  check_same(foreign.tensors, all_types());
  CHECK(foreign.metadata.at("epoch") == "4");
  CHECK_ERROR(error_of([&] { load_checkpoint(theirs); }), ErrorKind::corrupt_data, "no integrity record");
}

TEST_CASE(
    "types that safetensors lacks come back bit for bit, and other programs see the numbers that they consist of") {
  const TemporaryDirectory directory;
  const std::string path = directory / "a.safetensors";
  const at::Tensor bytes = at::arange(6 * 16, at::kByte).mul(41);
  Tensors tensors;
  for (const at::ScalarType type : {at::kComplexHalf, at::kComplexFloat, at::kComplexDouble, at::kFloat8_e4m3fn,
                                    at::kFloat8_e5m2, at::kFloat8_e4m3fnuz, at::kFloat8_e5m2fnuz, at::kFloat8_e8m0fnu,
                                    at::kFloat4_e2m1fn_x2, at::kBits8, at::kBits16, at::kBits1x8}) {
    const auto count = 6 * static_cast<std::int64_t>(c10::elementSize(type));
    const at::Tensor tensor = at::empty({3, 2}, type);
    std::memcpy(tensor.mutable_data_ptr(), bytes.const_data_ptr(), static_cast<std::size_t>(count));
    tensors[c10::toString(type)] = tensor;
  }
  tensors["nothing"] = at::empty({0, 3}, at::kComplexFloat);
  save_checkpoint(path, {.tensors = tensors, .metadata = {{"epoch", "3"}}});
  const Checkpoint loaded = load_checkpoint(path);
  CHECK(loaded.metadata == std::map<std::string, std::string>{{"epoch", "3"}});
  REQUIRE(loaded.tensors.size() == tensors.size());
  for (const auto& [name, tensor] : tensors) {
    CAPTURE(name);
    const at::Tensor& found = loaded.tensors.at(name);
    CHECK((found.scalar_type() == tensor.scalar_type()));
    REQUIRE(found.sizes().vec() == tensor.sizes().vec());
    if (tensor.numel() != 0) CHECK(std::memcmp(found.const_data_ptr(), tensor.const_data_ptr(), tensor.nbytes()) == 0);
  }
  const at::Tensor waves = at::complex(at::arange(6).to(at::kDouble), at::ones({6}, at::kDouble)).reshape({2, 3});
  const Tensors complex = {
      {"scalar", waves[1][2]}, {"turned", waves.t()}, {"conjugate", waves.conj()}, {"row", waves[1]}};
  save_checkpoint(path, {.tensors = complex});
  check_same(load_checkpoint(path).tensors, complex);
  const char* const program =
      "import sys, torch\n"
      "from safetensors.torch import load_file\n"
      "waves = torch.complex(torch.arange(6.).double(), torch.ones(6).double()).reshape(2, 3)\n"
      "found = {name: torch.view_as_complex(each) for name, each in load_file(sys.argv[1]).items()}\n"
      "for name, each in dict(scalar=waves[1, 2], turned=waves.t(), conjugate=waves.conj(), row=waves[1]).items():\n"
      "    assert torch.equal(found[name], each), name\n";
  CHECK(run_command({LOCKSTEP_PYTHON, "-c", program, path}).exit_code == 0);
}

TEST_CASE("views are stored as what they show; a large tensor survives") {
  const TemporaryDirectory directory;
  const std::string path = directory / "a.safetensors";
  const at::Tensor base = at::arange(3'000'000, at::kFloat).reshape({1000, 3000});
  const Tensors tensors = {{"base", base}, {"transposed", base.t()}, {"column", base.slice(1, 7, 8)}};
  save_checkpoint(path, {.tensors = tensors});
  const Tensors loaded = load_checkpoint(path).tensors;
  check_same(loaded, tensors);
  CHECK(loaded.at("transposed").is_contiguous());
}

TEST_CASE("what cannot be stored is refused by name, and no file appears") {
  const TemporaryDirectory directory;
  const auto refused = [&](const at::Tensor& tensor) {
    return error_of([&] { save_checkpoint(directory / "a", {.tensors = {{"odd", tensor}}}); });
  };
  CHECK_ERROR(refused(at::Tensor()), ErrorKind::invalid_argument, "'odd' is undefined");
  CHECK_ERROR(refused(at::ones({2, 2}).to_sparse()), ErrorKind::invalid_argument, "'odd' is not dense");
  CHECK_ERROR(refused(at::empty({2}, at::kMeta)), ErrorKind::invalid_argument, "'odd' is on the meta device");
  const at::Tensor quantised = at::quantize_per_tensor(at::ones({2}), 0.1, 0, at::kQInt8);
  CHECK_ERROR(refused(quantised), ErrorKind::invalid_argument, "'odd'", "QInt8");
  const auto named = [&](const std::string& name) {
    return error_of([&] { save_checkpoint(directory / "a", {.tensors = {{name, at::ones({1})}}}); });
  };
  CHECK_ERROR(named("two\nlines"), ErrorKind::invalid_argument, "control characters", "'two?lines'");
  CHECK_ERROR(named(std::string(2000, 'x')), ErrorKind::invalid_argument, "2000 bytes", "'xxx");
  CHECK(std::filesystem::is_empty(directory.path()));
}

// fault: 24, 25
TEST_CASE("the latest checkpoint is the newest that is whole") {
  const TemporaryDirectory directory;
  CHECK_FALSE(latest_checkpoint(directory.path()).has_value());
  for (const std::uint64_t step : {5, 90, 1000}) {
    save_checkpoint(step_path(directory.path(), step), number(static_cast<double>(step)));
  }
  CHECK(latest_checkpoint(directory.path())->step == 1000);
  flip_last_bit(step_path(directory.path(), 1000));
  const auto latest = latest_checkpoint(directory.path());
  REQUIRE(latest);
  CHECK(latest->step == 90);
  CHECK(latest->path == step_path(directory.path(), 90));
  CHECK(latest->checkpoint.tensors.at("a")[0].item<float>() == 90);
  std::filesystem::resize_file(step_path(directory.path(), 90), 0);
  flip_last_bit(step_path(directory.path(), 5));
  CHECK_FALSE(latest_checkpoint(directory.path()).has_value());
}

// fault: S9
TEST_CASE("what tensors are called leads to no other file") {
  const TemporaryDirectory directory;
  std::filesystem::create_directory(directory / "inside");
  const std::string path = directory / "inside/a.safetensors";
  const Tensors tensors = {
      {"../outside", at::ones({2})}, {directory / "absolute", at::ones({1})}, {"..", at::ones({1})}};
  save_checkpoint(path, {.tensors = tensors});
  check_same(load_checkpoint(path).tensors, tensors);
  CHECK(std::distance(std::filesystem::directory_iterator(directory.path()), {}) == 1);
  CHECK(std::distance(std::filesystem::directory_iterator(directory / "inside"), {}) == 1);
}

TEST_CASE("old checkpoints are removed when a new one is there") {
  const TemporaryDirectory directory;
  for (const std::uint64_t step : {1, 2, 3, 4}) {
    save_checkpoint(step_path(directory.path(), step), number(0), {.keep_last = 2});
  }
  CHECK(steps_in(directory) == std::vector<std::uint64_t>{4, 3});
}

// feature: E-15, Z-13
TEST_CASE("only a leading prefix is stripped") {
  const at::Tensor tensor = at::ones({1});
  const Tensors stripped = strip_prefix(
      {{"module.a.weight", tensor}, {"my_module.x", tensor}, {"encoder.module.w", tensor}, {"b", tensor}}, "module.");
  std::vector<std::string> names;
  for (const auto& item : stripped) names.push_back(item.first);
  CHECK(names == std::vector<std::string>{"a.weight", "b", "encoder.module.w", "my_module.x"});
  CHECK_ERROR(error_of([&] {
                strip_prefix({{"module.a", tensor}, {"a", tensor}}, "module.");
              }),
              ErrorKind::invalid_argument, "two tensors the name 'a'");
}

}  // namespace checkpoint_test
