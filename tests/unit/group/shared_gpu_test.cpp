// Ranks that use one GPU, as fake_properties.cpp tells: numbers 0 and 1 are one GPU, 2 and 3 another one.
#include <doctest/doctest.h>

#include <string>

#include "lockstep/comm/rendezvous/shared_gpus.h"
#include "tests/support/expect_error.h"
#include "tests/support/local_worlds.h"
#include "tests/support/standard_error_of.h"

namespace shared_gpu_test {

using namespace lockstep;
using namespace lockstep::internal;
using namespace lockstep::testing;

namespace {

constexpr const char* kFirst = "00102030-4050-6070-8090-a0b0c0d0e0f0";

// Rank r on the GPU with number gpus[r].
std::vector<std::exception_ptr> run_on(const std::vector<int>& gpus, SharedGpu shared) {
  const auto store = std::make_shared<MemoryStore>();
  const int ranks = static_cast<int>(gpus.size());
  return run_ranks(ranks, [&](int rank) {
    const c10::Device device(c10::kCUDA, static_cast<c10::DeviceIndex>(gpus[static_cast<std::size_t>(rank)]));
    init_process_group({.backend = "native",
                        .rank = rank,
                        .world_size = ranks,
                        .store = store,
                        .device = device,
                        .shared_gpu = shared})
        .barrier();
  });
}

std::string said_on(const std::vector<int>& gpus, SharedGpu shared) {
  return standard_error_of([&] {
    for (const std::exception_ptr& error : run_on(gpus, shared)) CHECK(error == nullptr);
  });
}

}  // namespace

TEST_CASE("a GPU is told by its UUID") {
  CHECK(gpu_uuid(0) == kFirst);
  CHECK(gpu_uuid(1) == gpu_uuid(0));
  CHECK(gpu_uuid(2) != gpu_uuid(0));
  CHECK(gpu_uuid(6).empty());  // MIG
  CHECK(gpu_uuid(8).empty());
}

// feature: E-20
TEST_CASE("ranks that share a GPU are warned of by both names, once") {
  const std::string said = said_on({0, 2, 1}, SharedGpu::warn);
  const auto at = said.find("rank 0 (host ");
  REQUIRE(at != std::string::npos);
  CHECK(said.find(") and rank 2 (host ", at) != std::string::npos);
  CHECK(said.find(std::string("use the same GPU, ") + kFirst, at) != std::string::npos);
  CHECK(said.find("use the same GPU") == said.rfind("use the same GPU"));
  CHECK(said_on({0, 2}, SharedGpu::warn).empty());
  CHECK(said_on({0, 1}, SharedGpu::allow).empty());
  CHECK(said_on({6, 7}, SharedGpu::warn).empty());  // not known
}

// feature: E-20
TEST_CASE("ranks that share a GPU are refused on all ranks") {
  for (const std::exception_ptr& error : run_on({3, 0, 2}, SharedGpu::refuse)) {
    CHECK_ERROR(error_of([&] { std::rethrow_exception(error); }), ErrorKind::invalid_argument, "rank 0 (host ",
                ") and rank 2 (host ", "use the same GPU");
  }
  for (const std::exception_ptr& error : run_on({0, 2}, SharedGpu::refuse)) CHECK(error == nullptr);
}

}  // namespace shared_gpu_test
