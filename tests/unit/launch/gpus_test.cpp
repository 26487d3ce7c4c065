#include "lockstep/job/launch/gpus.h"

#include <doctest/doctest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

namespace gpus_test {

using namespace lockstep::internal;

// feature: D-09
TEST_CASE("each GPU has a file of its own") {
  char name[] = "/tmp/lockstep-gpus-XXXXXX";
  const std::string folder = ::mkdtemp(name);
  CHECK(present_gpus(folder) == 0);
  for (const char* file : {"nvidia0", "nvidia11", "nvidiactl", "nvidia", "nvidia-uvm", "nvidia1x"}) {
    std::ofstream(folder + "/" + file) << "";
  }
  CHECK(present_gpus(folder) == 2);
  std::filesystem::remove_all(folder);
  CHECK(present_gpus(folder) == 0);
}

// feature: D-09
TEST_CASE("CUDA_VISIBLE_DEVICES counts as in torch.cuda.device_count()") {
  CHECK(visible_gpus(8, nullptr) == 8);
  CHECK(visible_gpus(8, "") == 0);
  CHECK(visible_gpus(8, "-1") == 0);
  CHECK(visible_gpus(8, "NoDevFiles") == 0);
  CHECK(visible_gpus(8, "3") == 1);
  CHECK(visible_gpus(8, "0, 5,+2") == 3);
  CHECK(visible_gpus(8, "1gpu2,2ampere") == 2);
  CHECK(visible_gpus(8, "0,-1,2") == 1);
  CHECK(visible_gpus(8, "0,1,9,2") == 2);
  CHECK(visible_gpus(8, "0,0") == 0);
  CHECK(visible_gpus(0, "0,1") == 0);
  CHECK(visible_gpus(8, "GPU-a,GPU-b,3,GPU-c") == 2);
  CHECK(visible_gpus(1, "GPU-a,GPU-b") == 1);
  CHECK(visible_gpus(8, "GPU-a,GPU-a") == 0);
  CHECK(visible_gpus(2, "MIG-a,MIG-b") == 1);
}

}  // namespace gpus_test
