// Something with tensors: a checkpoint set, a safetensors file, or one of foreign_sources.h. path -> open_tensors() ->
// names, types and shapes -> bytes, piece by piece, so that memory does not grow with the tensors where the kind allows
// that. A kind more is a class more.
// Not thread-safe. Blocks for disk I/O. Error{invalid_argument}: no such file; Error{corrupt_data}: a damaged one.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/bytes.h"
#include "lockstep/formats/safetensors/safetensors_file.h"

namespace lockstep::internal {
class SignatureCheck;
}

namespace lockstep::tools {

struct SourceTensor {
  std::string dtype;  // as safetensors name it
  std::vector<std::int64_t> shape;
  std::uint64_t bytes = 0;
};

// Facts about it other than its tensors.
struct SourceFacts {
  std::string kind;                   // "set", "file", "torch", "index", "dcp"
  std::uint64_t bytes = 0;            // of all its files
  std::size_t files = 1;              // that hold tensors
  double modified_seconds = 0;        // since 1970
  std::optional<std::uint64_t> step;  // as far as it says so
  std::optional<int> world_size = {};
  bool has_digests = true;  // else damage of tensors cannot be seen
  std::map<std::string, std::string> written = {};
  std::map<std::string, std::string> metadata = {};
  std::map<std::string, double> metrics = {};
  std::string user = "null";   // JSON
  std::string signature = {};  // of a set, once it is checked: "signed"
};

double modified_seconds_of(const std::filesystem::path& path);

// The bytes of a tensor from first to last. With the last ones its digest is verified, if there is one.
class ByteStream {
 public:
  virtual ~ByteStream() = default;
  virtual std::uint64_t left() const = 0;
  // REQUIRES: out.size() <= left().
  virtual void read(MutableByteSpan out) = 0;
};

// Of a tensor of a safetensors file.
class FileStream : public ByteStream {
 public:
  explicit FileStream(TensorStream stream) : stream_(std::move(stream)) {}
  std::uint64_t left() const override { return stream_.left(); }
  void read(MutableByteSpan out) override { stream_.read(out); }

 private:
  TensorStream stream_;
};

class TensorSource {
 public:
  virtual ~TensorSource() = default;

  const SourceFacts& facts() const { return facts_; }
  const std::map<std::string, SourceTensor>& tensors() const { return tensors_; }
  std::uint64_t tensor_bytes() const;
  // REQUIRES: `name` is one of tensors(). It may be used until the next call, and no longer than this lives.
  virtual std::unique_ptr<ByteStream> stream(const std::string& name) = 0;
  // Reads everything. progress: bytes so far.
  virtual void verify(const std::function<void(std::uint64_t)>& progress);

 protected:
  SourceFacts facts_;
  std::map<std::string, SourceTensor> tensors_;
};

// Reads the header or the manifest, and checks that the files are there in full.
std::unique_ptr<TensorSource> open_tensors(const std::filesystem::path& path);
// The same; of a set also its signature, with the errors of SignatureCheck.
std::unique_ptr<TensorSource> open_tensors(const std::filesystem::path& path,
                                           const internal::SignatureCheck& signature);

// The facts of a set, as a file made of it stores them in one string of its metadata.
inline constexpr const char* kSetFacts = "checkpoint";
std::string set_facts_of(const SourceFacts& facts);

// In parts of a few megabytes.
void for_all_bytes(ByteStream& stream, const std::function<void(ByteSpan)>& take);

}  // namespace lockstep::tools
