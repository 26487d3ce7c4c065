#include "lockstep/train/checkpoint/step_files.h"

#include <doctest/doctest.h>

#include <fstream>

#include "tests/support/expect_error.h"
#include "tests/support/temporary_directory.h"

namespace step_files_test {

using namespace lockstep;
using namespace lockstep::internal;

namespace {

std::vector<std::uint64_t> steps_in(const TemporaryDirectory& directory) {
  std::vector<std::uint64_t> steps;
  for (const StepFile& file : list_step_files(directory.path())) steps.push_back(file.step);
  return steps;
}

void touch(const std::filesystem::path& path) { std::ofstream(path) << "x"; }

}  // namespace

TEST_CASE("a step and its file name say the same") {
  CHECK(lockstep::step_path("dir", 400) == "dir/step-0000000400.safetensors");
  for (const std::uint64_t step :
       {std::uint64_t{0}, std::uint64_t{7}, std::uint64_t{99'999'999'999}, ~std::uint64_t{0}}) {
    CHECK(step_of(step_path("dir", step)) == step);
  }
  for (const char* name : {"step-.safetensors", "step-12", "step-12x.safetensors", "step--1.safetensors",
                           "12.safetensors", "step-400.safetensors", "step-00000000400.safetensors",
                           "step-99999999999999999999.safetensors", ".step-1.safetensors.writing-1"}) {
    CAPTURE(name);
    CHECK_FALSE(step_of(name).has_value());
  }
}

// fault: S9
TEST_CASE("step files are listed newest first; links and other files are left alone") {
  const TemporaryDirectory directory;
  for (const std::uint64_t step : {20, 3, 100}) touch(step_path(directory.path(), step));
  touch(directory / "model.safetensors");
  std::filesystem::create_directory(step_path(directory.path(), 500));
  std::filesystem::create_symlink("/etc/passwd", step_path(directory.path(), 600));
  CHECK(steps_in(directory) == std::vector<std::uint64_t>{100, 20, 3});
  CHECK_ERROR(error_of([&] { list_step_files(directory / "missing"); }), ErrorKind::invalid_argument,
              directory / "missing");
}

TEST_CASE("the last steps are kept, and always the one just written") {
  const TemporaryDirectory directory;
  for (const std::uint64_t step : {1, 2, 3, 4, 5}) touch(step_path(directory.path(), step));
  keep_last_steps(step_path(directory.path(), 5), 3);
  CHECK(steps_in(directory) == std::vector<std::uint64_t>{5, 4, 3});
  keep_last_steps(step_path(directory.path(), 3), 2);
  CHECK(steps_in(directory) == std::vector<std::uint64_t>{5, 3});
  CHECK_ERROR(error_of([&] { keep_last_steps(directory / "model.safetensors", 2); }), ErrorKind::invalid_argument,
              "step_path()");
  CHECK_ERROR(error_of([&] { keep_last_steps(step_path(directory.path(), 3), -1); }), ErrorKind::invalid_argument,
              "keep_last is -1");
}

}  // namespace step_files_test
