// The kind of a file, by its first bytes, and how to read it: for errors if another kind is expected. Pure.
#pragma once

#include <cstdint>
#include <string_view>

#include "lockstep/base/bytes.h"

namespace lockstep {

enum class FileKind : std::uint8_t {
  unknown,
  empty,
  safetensors,
  torch_archive,  // a zip of torch.save, or of C++ torch::save, or TorchScript
  torch_legacy,   // of torch.save before PyTorch 1.6
  pickle,
  numpy_array,
  numpy_archive,
  keras_archive,
  zip,
  hdf5,
  gguf,
  onnx,
  gzip,
  tar,
  json,
};

// As many bytes suffice.
inline constexpr std::size_t kFileKindBytes = 512;

// `first_bytes` are all of the file, or at least kFileKindBytes.
FileKind recognise_file(ByteView first_bytes);

// How a legacy file of torch.save begins: a pickle of protocol 2 that is an int of 10 bytes.
inline constexpr ByteView kTorchLegacyMagic{"\x80\x02\x8a\x0al\xfc\x9c\x46\xf9\x20j\xa8\x50\x19.", 15};

// "is a file of torch.save: read it with load_torch_file()"; for a message that begins with the file's name.
std::string_view how_to_read(FileKind kind);

}  // namespace lockstep
