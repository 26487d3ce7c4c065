#include <ATen/core/Tensor.h>
#include <lockstep/comm/adapters/backends.h>
#include <lockstep/comm/group/process_group.h>
#include <lockstep/comm/group/world.h>

#include <iostream>

int main() {
  for (const std::string& name : lockstep::backends()) std::cout << name << ' ';
  const auto world = lockstep::init_process_group({.backend = "nccl", .rank = 0, .world_size = 1});
  const at::Tensor ones = world.group().empty({3}).fill_(1);
  world.all_reduce(ones);
  std::cout << "have a sum of " << ones.sum().item<float>() << '\n';
}
