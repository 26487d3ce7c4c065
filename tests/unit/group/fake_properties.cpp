// What libtorch with CUDA has, for tests without it: two numbers of a process are one GPU, as where they are those of
// two containers. It has eight numbers; 6 and 7 are parts of a GPU.
#include <cstdio>
#include <stdexcept>

struct cudaDeviceProp {
  char name[256];
  unsigned char uuid[16];
};

namespace at::cuda {

__attribute__((visibility("default"))) cudaDeviceProp* getDeviceProperties(signed char device) {
  static cudaDeviceProp all[8];
  if (device < 0 || device >= 8) throw std::runtime_error("no such device");
  cudaDeviceProp& properties = all[device];
  std::snprintf(properties.name, sizeof properties.name, "NVIDIA A100-SXM4-40GB%s", device < 6 ? "" : " MIG 1g.5gb");
  for (int i = 0; i < 16; ++i) properties.uuid[i] = static_cast<unsigned char>(16 * i + device / 2);
  return &properties;
}

}  // namespace at::cuda
