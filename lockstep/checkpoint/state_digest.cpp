#include "lockstep/checkpoint/state_digest.h"

#include <openssl/evp.h>

#include <memory>

#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/checkpoint/module_state.h"
#include "lockstep/checkpoint/optimizer_state.h"

namespace lockstep {
namespace {

class Sha256 {
 public:
  Sha256() { check(::EVP_DigestInit_ex(context_.get(), ::EVP_sha256(), nullptr)); }

  void update(const void* data, std::size_t bytes) { check(::EVP_DigestUpdate(context_.get(), data, bytes)); }

  std::string finish() {
    unsigned char digest[EVP_MAX_MD_SIZE];
    unsigned length = 0;
    check(::EVP_DigestFinal_ex(context_.get(), digest, &length));
    std::string text;
    for (unsigned i = 0; i < length; ++i) text += fmt::format("{:02x}", digest[i]);
    return text;
  }

 private:
  static void check(int success) {
    if (success != 1) {
      throw Error(ErrorKind::internal, "OpenSSL cannot compute SHA-256; is its configuration restricted?");
    }
  }

  std::unique_ptr<EVP_MD_CTX, decltype(&::EVP_MD_CTX_free)> context_{::EVP_MD_CTX_new(), &::EVP_MD_CTX_free};
};

}  // namespace

std::string sha256_of(const Checkpoint& checkpoint) {
  Sha256 sha256;
  for (const auto& [name, tensor] : checkpoint.tensors) {
    // A line break ends the text, and no name of a type or a number holds one.
    const std::string head = fmt::format("{} {} [{}] {}\n", name.size(), name, fmt::join(tensor.sizes(), ","),
                                         c10::toString(tensor.scalar_type()));
    sha256.update(head.data(), head.size());
    const at::Tensor dense = tensor.contiguous();
    sha256.update(dense.const_data_ptr(), dense.nbytes());
  }
  return sha256.finish();
}

std::string sha256_of(const torch::nn::Module& module, const torch::optim::Optimizer& optimizer) {
  Checkpoint state;
  add_module(state, module);
  add_optimizer(state, optimizer);
  return sha256_of(state);
}

}  // namespace lockstep
