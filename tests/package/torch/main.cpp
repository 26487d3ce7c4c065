#include <ATen/core/Tensor.h>
#include <lockstep/comm/group/process_group.h>
#include <lockstep/comm/group/world.h>
#include <lockstep/train/checkpoint/torch_files.h>

#include <iostream>

int main() {
  const auto world = lockstep::init_process_group();
  const at::Tensor ones = world.group().empty({3}).fill_(1);
  world.group().all_reduce(ones);
  lockstep::save_torch_file("ones.pt", {{"ones", ones}});  // the component formats
  const at::Tensor loaded = lockstep::load_torch_file("ones.pt").tensors.at("ones");
  std::cout << "the sum is " << loaded.sum().item<float>() << '\n';
}
