#include <doctest/doctest.h>
#include <sys/mman.h>
#include <unistd.h>
#include <zlib.h>

#include <cerrno>
#include <fstream>
#include <span>
#include <stdexcept>
#include <vector>

#include "lockstep/base/file_io.h"
#include "lockstep/formats/distributed_metadata.h"
#include "lockstep/formats/pickle_reader.h"
#include "lockstep/formats/sharded_safetensors.h"
#include "lockstep/formats/torch_file.h"
#include "lockstep/formats/torch_file_writer.h"
#include "tests/fuzz/fuzz.h"
#include "tests/support/temporary_directory.h"
#include "tests/unit/formats/pickle_bytes.h"

using namespace lockstep;
using namespace lockstep::internal;
using namespace lockstep::testing;
using namespace std::string_literals;

namespace {

constexpr std::uint64_t kMostTensorBytes = 1 << 16;  // that a test reads of a file that claims more
const std::vector<ErrorKind> kKinds = {ErrorKind::corrupt_data, ErrorKind::invalid_argument};

// A file in memory, of which each input takes the place.
class MemoryFile {
 public:
  MemoryFile() : fd_(::memfd_create("fuzz", MFD_CLOEXEC)) {
    if (!fd_) throw system_error("memfd_create", errno);
  }
  OpenFile open(ByteView bytes) const {
    if (resize_file(fd_.get(), 0) != 0 || ::lseek(fd_.get(), 0, SEEK_SET) != 0)
      throw system_error("memory file", errno);
    write_all(fd_.get(), bytes, "a memory file");
    return {UniqueFd(::dup(fd_.get())), bytes.size()};
  }

 private:
  UniqueFd fd_;
};

Bytes slurp(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// Looks at everything.
void visit(const PickleValue& value) {
  switch (value.kind()) {
    case PickleKind::dict:
      for (std::size_t i = 0; i < value.size(); ++i) {
        visit(value.key(i));
        visit(value.value(i));
      }
      return;
    case PickleKind::list:
    case PickleKind::tuple:
    case PickleKind::set:
      for (std::size_t i = 0; i < value.size(); ++i) visit(value.item(i));
      return;
    case PickleKind::object:
      visit(value.arguments());
      if (value.state()) visit(*value.state());
      return;
    case PickleKind::tensor: value.tensor(); return;
    case PickleKind::storage: value.storage(); return;
    default: return;
  }
}

void load(const MemoryFile& memory, ByteView bytes) {
  const TorchFile file(memory.open(bytes), 0, bytes.size(), "input");
  for (const NamedPickleValue& each : flatten(file.root())) {
    if (!each.value.is(PickleKind::tensor)) continue;
    const TorchTensor tensor = file.tensor(each.value);
    if (tensor.bytes > kMostTensorBytes) continue;
    std::vector<std::byte> out(tensor.bytes), parts(tensor.bytes);
    file.read(tensor, out);
    if (!is_row_major(tensor)) continue;
    const std::size_t half = parts.size() / 2;
    file.read(tensor, half, std::span(parts).subspan(half));
    file.read(tensor, 0, std::span(parts).first(half));
    if (parts != out) throw std::logic_error("other bytes in parts than as a whole");
  }
}

Bytes pickle_example() {
  return kProtocol2 + "}q\0("s + text("a") + "q\1" + tensor(storage("0", 4), 0, numbers({2, 2}), numbers({2, 1})) +
         "q\2" + text("b") + "](K\1M\1\2\x8a\2\1\2\x88\x89Ne" + text("c") + "h\2h\1\x86q\3u.";
}

Bytes object_example() {
  return kProtocol2 + global("__torch__.net", "Module") + ")\x81}(" + text("w") +
         tensor(storage("1", 2), 0, numbers({2}), numbers({1})) + text("list") +
         global("torch.jit._pickle", "build_intlist") + "](K\1K\2e\x85R" + text("set") + global("__builtin__", "set") +
         "]K\1a\x85R" + text("raw") + global("_codecs", "encode") + text("\xc3\xbf") + text("latin1") + "\x86R" + "ub.";
}

// Opcodes and names.
std::vector<Bytes> pickle_words() {
  std::vector<Bytes> words = {global("collections", "OrderedDict") + ")R",
                              global("torch", "Size"),
                              "h\0"s,
                              "h\1",
                              "h\2",
                              "q\0"s,
                              "q\1",
                              "]",
                              "}",
                              ")",
                              "\x85",
                              "\x86",
                              "\x87",
                              "(",
                              "t",
                              "e",
                              "u",
                              "s",
                              "a",
                              "b",
                              "R",
                              "\x81",
                              "\x94",
                              "\x93",
                              ".",
                              "Q",
                              "K\1",
                              "N",
                              text("a"),
                              "r\xff\xff\0\0"s};
  words.push_back(global("torch._utils", "_rebuild_parameter"));
  words.push_back(tensor(storage("0", 4), 1, numbers({2}), numbers({1})));
  return words;
}

}  // namespace

TEST_CASE("pickles") {
  fuzz::run({.name = "pickles",
             .seeds = {pickle_example(), object_example()},
             .words = pickle_words(),
             .kinds = kKinds,
             .memory_limit = std::size_t{2} << 20,
             .parse = [](ByteView bytes) {
               const auto tree = read_pickle(Bytes(bytes), "input");
               visit(tree->root());
               flatten(tree->root());
             }});
}

namespace {

std::size_t number_in(ByteView bytes, std::size_t at, std::size_t width) {
  std::size_t number = 0;
  for (std::size_t i = 0; i < width; ++i) number |= std::size_t{static_cast<unsigned char>(bytes[at + i])} << (8 * i);
  return number;
}

// Makes the CRC-32s in the directory right for what the data now is.
void repair_sums(Bytes& bytes) {
  for (std::size_t at = bytes.find("PK\1\2"); at != Bytes::npos && at + 46 <= bytes.size();
       at = bytes.find("PK\1\2", at + 4)) {
    const std::size_t local = number_in(bytes, at + 42, 4);
    const std::size_t size = number_in(bytes, at + 20, 4);
    if (local > bytes.size() || bytes.size() - local < 30) continue;
    const std::size_t begin = local + 30 + number_in(bytes, local + 26, 2) + number_in(bytes, local + 28, 2);
    if (begin > bytes.size() || size > bytes.size() - begin) continue;
    const auto sum = ::crc32(0, reinterpret_cast<const unsigned char*>(bytes.data()) + begin, static_cast<uInt>(size));
    bytes.replace(at + 16, 4, little_endian(sum, 4));
  }
}

}  // namespace

TEST_CASE("files of torch.save") {
  const TemporaryDirectory directory;
  const Bytes sixteen = "0123456789abcdef";
  const ByteSpan data = std::as_bytes(std::span(sixteen));
  using Dict = TorchValue::Dict;
  write_torch_file(directory / "a.pt", {Dict{{"w", {tensor_of("F32", {2, 2}, data)}},
                                             {"half", {tensor_of("U16", {4}, data.first(8))}},
                                             {"step", {std::int64_t{1}}}}});
  const MemoryFile memory;
  fuzz::run(
      {.name = "files of torch.save",
       .seeds = {slurp(directory / "a.pt")},
       .words = {"PK\1\2", "PK\3\4", "PK\5\6", "PK\6\6", "PK\6\7", "PK\7\x08", "archive/data/0", "\xff\xff\xff\xff"},
       .repair = [](Bytes& bytes, fuzz::Random&) { repair_sums(bytes); },
       .kinds = kKinds,
       .memory_limit = std::size_t{4} << 20,
       .parse = [&](ByteView bytes) { load(memory, bytes); }});
}

TEST_CASE("legacy files of torch.save") {
  const Bytes machine = kProtocol2 + "}" + text("little_endian") + "\x88s.";
  const Bytes example = Bytes("\x80\x02\x8a\x0al\xfc\x9c\x46\xf9\x20j\xa8\x50\x19.", 15) + kProtocol2 + "M\xe9\3." +
                        machine + pickle_example() + kProtocol2 + "]" + text("0") + "a." + little_endian(4, 8) +
                        "0123456789abcdef";
  const MemoryFile memory;
  fuzz::run({.name = "legacy files of torch.save",
             .seeds = {example},
             .words = pickle_words(),
             .kinds = kKinds,
             .memory_limit = std::size_t{4} << 20,
             .parse = [&](ByteView bytes) { load(memory, bytes); }});
}

namespace {

const std::string kMetadataModule = "torch.distributed.checkpoint.metadata";

Bytes made(std::string_view module, std::string_view name, const Bytes& state) {
  return global(module, name) + ")\x81" + state + "b";
}

Bytes chunk(std::uint32_t offset, std::uint32_t size) {
  return made(kMetadataModule, "ChunkStorageMetadata",
              "}(" + text("offsets") + numbers({offset, 0}) + text("sizes") + numbers({size, 3}) + "u");
}

Bytes place(std::string_view name, const Bytes& offset, std::uint32_t begin) {
  return made(kMetadataModule, "MetadataIndex", "}(" + text("fqn") + text(name) + text("offset") + offset + "u") +
         made("torch.distributed.checkpoint.filesystem", "_StorageInfo",
              "}(" + text("relative_path") + text("__0_0.distcp") + text("offset") + integer(begin) + text("length") +
                  integer(100) + "u");
}

Bytes metadata_example() {
  const Bytes layout = global("torch.serialization", "_get_layout") + text("torch.strided") + "\x85R";
  const Bytes properties =
      made(kMetadataModule, "TensorProperties", "(" + global("torch", "float32") + layout + "\x89N\x89t");
  const Bytes tensor = made(kMetadataModule, "TensorStorageMetadata",
                            "}(" + text("properties") + properties + text("size") + numbers({4, 3}) + text("chunks") +
                                "](" + chunk(0, 1) + chunk(1, 3) + "eu");
  return kProtocol2 +
         made(kMetadataModule, "Metadata",
              "}(" + text("state_dict_metadata") + "}(" + text("w") + tensor + text("step") +
                  global(kMetadataModule, "BytesStorageMetadata") + ")\x81u" + text("storage_data") + "}(" +
                  place("w", numbers({0, 0}), 0) + place("w", numbers({1, 0}), 100) + place("step", "N", 200) + "uu") +
         ".";
}

}  // namespace

TEST_CASE("metadata of distributed checkpoints") {
  fuzz::run({.name = "metadata of distributed checkpoints",
             .seeds = {metadata_example()},
             .words = {text("offsets"), text("sizes"), text("w"), "K\0"s, "K\1", numbers({1, 0}), integer(0x7fffffff),
                       chunk(0, 1), place("w", "N", 0), text("../x"), text("/x")},
             .kinds = kKinds,
             .memory_limit = std::size_t{2} << 20,
             .parse = [](ByteView bytes) {
               const DistributedMetadata parsed = parse_distributed_metadata(Bytes(bytes), "input");
               for (const DistributedTensor& tensor : parsed.tensors) {
                 std::uint64_t elements = 0;
                 for (const DistributedChunk& each : tensor.chunks) {
                   std::uint64_t volume = 1;
                   for (const std::int64_t size : each.sizes) volume *= static_cast<std::uint64_t>(size);
                   elements += volume;
                   if (each.place.file.find('/') != std::string::npos) throw std::logic_error("a path");
                 }
                 std::uint64_t wanted = 1;
                 for (const std::int64_t size : tensor.shape) wanted *= static_cast<std::uint64_t>(size);
                 if (elements != wanted) throw std::logic_error("a gap");
               }
             }});
}

TEST_CASE("indices of sharded safetensors") {
  fuzz::run({.name = "indices of sharded safetensors",
             .seeds = {R"({"metadata": {"total_size": 12}, "weight_map": {"a.weight": "m-00001-of-00002.safetensors",
                           "a.bias": "m-00002-of-00002.safetensors"}})"},
             .words = {"\"", "{", "}", "[", "]", ":", ",", "../", "\\u0000", "\\", "null", "1e999", "\"weight_map\":"},
             .memory_limit = std::size_t{1} << 20,
             .parse = [](ByteView bytes) {
               for (const auto& [tensor, file] : parse_safetensors_index(bytes, "input").files) {
                 if (file.empty() || file.find('/') != std::string::npos) throw std::logic_error("a path");
               }
             }});
}
