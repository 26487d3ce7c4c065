#include "lockstep/formats/safetensors/file_kind.h"

#include <algorithm>

namespace lockstep {
namespace {

using namespace std::string_view_literals;

constexpr std::size_t kTarMagicAt = 257;
constexpr std::size_t kLocalHeaderBytes = 30;

std::size_t two_bytes(ByteView bytes, std::size_t at) {
  return static_cast<std::uint8_t>(bytes[at]) | static_cast<std::size_t>(static_cast<std::uint8_t>(bytes[at + 1])) << 8;
}

// By the name of the first entry.
FileKind recognise_zip(ByteView bytes) {
  if (bytes.size() < kLocalHeaderBytes) return FileKind::zip;
  const ByteView name = bytes.substr(kLocalHeaderBytes, two_bytes(bytes, 26));
  const std::size_t slash = name.find('/');
  const ByteView inner = slash == ByteView::npos ? ByteView() : name.substr(slash + 1);
  for (const ByteView known : {"data.pkl"sv, "version"sv, "byteorder"sv, "constants.pkl"sv, ".format_version"sv}) {
    if (inner == known) return FileKind::torch_archive;
  }
  if (inner.starts_with("data/") || inner.starts_with("code/")) return FileKind::torch_archive;
  if (name.ends_with(".npy")) return FileKind::numpy_archive;
  if (name == "metadata.json" || name == "config.json" || name.ends_with(".weights.h5")) return FileKind::keras_archive;
  return FileKind::zip;
}

// The length of a header, and the brace that it begins with.
bool is_safetensors(ByteView bytes) {
  return bytes.size() > 8 && bytes[8] == '{' && bytes.substr(4, 4) == ByteView("\0\0\0\0", 4);
}

// A protocol buffer whose first field is a small version, and whose second is a name or a domain.
bool is_onnx(ByteView bytes) {
  if (bytes.size() < 4 || bytes[0] != 0x08 || bytes[1] < 1 || bytes[1] > 20) return false;
  const std::size_t length = static_cast<std::uint8_t>(bytes[3]);
  const ByteView name = bytes.substr(4, length);
  const bool is_text = std::ranges::all_of(name, [](char c) { return c >= 0x20 && c < 0x7f; });
  return (bytes[2] == 0x12 || bytes[2] == 0x1a) && length > 0 && name.size() == length && is_text;
}

bool is_json(ByteView bytes) {
  const std::size_t first = bytes.find_first_not_of(" \t\r\n");
  return first != ByteView::npos && (bytes[first] == '{' || bytes[first] == '[');
}

// Its number, as a pickle of protocol 2 or 3.
bool is_torch_legacy(ByteView bytes) {
  return bytes.size() > 2 && bytes[0] == kTorchLegacyMagic[0] && (bytes[1] == 2 || bytes[1] == 3) &&
         bytes.substr(2).starts_with(kTorchLegacyMagic.substr(2));
}

bool is_pickle(ByteView bytes) {
  return bytes.size() >= 3 && bytes[0] == '\x80' && bytes[1] >= 2 && bytes[1] <= 5 && !is_safetensors(bytes);
}

}  // namespace

FileKind recognise_file(ByteView first_bytes) {
  const ByteView bytes = first_bytes;
  if (bytes.empty()) return FileKind::empty;
  if (bytes.starts_with("PK\x03\x04")) return recognise_zip(bytes);
  if (is_torch_legacy(bytes)) return FileKind::torch_legacy;
  if (bytes.starts_with("\x93NUMPY")) return FileKind::numpy_array;
  if (bytes.starts_with("\x89HDF\r\n\x1a\n")) return FileKind::hdf5;
  if (bytes.starts_with("GGUF")) return FileKind::gguf;
  if (bytes.starts_with("\x1f\x8b\x08")) return FileKind::gzip;
  if (bytes.size() > kTarMagicAt && bytes.substr(kTarMagicAt).starts_with("ustar")) return FileKind::tar;
  if (is_safetensors(bytes)) return FileKind::safetensors;
  if (is_pickle(bytes)) return FileKind::pickle;
  if (is_onnx(bytes)) return FileKind::onnx;
  if (is_json(bytes)) return FileKind::json;
  return FileKind::unknown;
}

std::string_view how_to_read(FileKind kind) {
  switch (kind) {
    case FileKind::unknown: return "has an unknown file format";
    case FileKind::empty: return "is empty";
    case FileKind::safetensors: return "is a safetensors file: read it with load_checkpoint()";
    case FileKind::torch_archive:
    case FileKind::torch_legacy: return "is a file of torch.save: read it with load_torch_file()";
    case FileKind::pickle:
      return "is a pickle, which only Python can read; load it there and save it with torch.save or safetensors";
    case FileKind::numpy_array:
    case FileKind::numpy_archive:
      return "is a file of NumPy; load it in Python and save it with safetensors.numpy.save_file()";
    case FileKind::keras_archive:
    case FileKind::hdf5: return "is a file of Keras or HDF5; load it in Python and save its arrays as safetensors";
    case FileKind::zip: return "is a zip archive, but not one of torch.save";
    case FileKind::gguf: return "is a GGUF file of llama.cpp; convert the model it was made from instead";
    case FileKind::onnx:
      return "is an ONNX model; load it in Python with onnx and save its initializers as safetensors";
    case FileKind::gzip: return "is compressed with gzip: unpack it first";
    case FileKind::tar: return "is a tar archive: unpack it first (PyTorch before 0.1.10 wrote such files)";
    case FileKind::json:
      return "is JSON: if it is the index of sharded safetensors, read it with ShardedSafetensorsReader, with its "
             "files in the same directory";
  }
  return "has an unknown file format";
}

}  // namespace lockstep
