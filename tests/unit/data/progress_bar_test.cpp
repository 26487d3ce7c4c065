#include "lockstep/train/data/progress_bar.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <sstream>
#include <string>

#include "tests/support/temporary_directory.h"

namespace progress_bar_test {

using namespace lockstep;

namespace {

struct Rank {
  int number = 0;
  int rank() const { return number; }
};

std::string shown(const Rank& rank) {
  const TemporaryDirectory folder;
  const std::string path = folder / "output";
  std::fflush(stdout);
  const int before = ::dup(STDOUT_FILENO);
  const int file = ::open(path.c_str(), O_WRONLY | O_CREAT, 0600);
  ::dup2(file, STDOUT_FILENO);
  {
    Progress progress(rank, "epoch 1/2", 3);
    for (int step = 1; step <= 3; ++step) progress.show(step, "loss %.1f", 0.5 * step);
  }
  std::fflush(stdout);
  ::dup2(before, STDOUT_FILENO);
  ::close(before);
  ::close(file);
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

}  // namespace

TEST_CASE("without a terminal the first step and the last one are a line each, on rank 0") {
  CHECK(shown({0}) == "epoch 1/2  33% 1/3  loss 0.5  eta 0:00\nepoch 1/2 100% 3/3  loss 1.5  eta 0:00\n");
  CHECK(shown({1}).empty());
}

}  // namespace progress_bar_test
