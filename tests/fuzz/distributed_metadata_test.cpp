#include "lockstep/formats/distributed_metadata.h"

#include <doctest/doctest.h>

#include <stdexcept>

#include "tests/fuzz/fuzz.h"
#include "tests/unit/formats/pickle_bytes.h"

namespace distributed_metadata_test {

using namespace lockstep;
using namespace lockstep::internal;
using namespace lockstep::testing;
using namespace std::string_literals;

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
             .kinds = {ErrorKind::corrupt_data, ErrorKind::invalid_argument},
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

}  // namespace distributed_metadata_test
