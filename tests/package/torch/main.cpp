#include <ATen/core/Tensor.h>
#include <lockstep/comm/group/process_group.h>
#include <lockstep/comm/group/world.h>

#include <iostream>

int main() {
  const auto world = lockstep::init_process_group();
  const at::Tensor ones = world.group().empty({3}).fill_(1);
  world.group().all_reduce(ones);
  std::cout << "the sum is " << ones.sum().item<float>() << '\n';
}
