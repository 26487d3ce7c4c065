#include <doctest/doctest.h>

#include <fstream>
#include <span>
#include <stdexcept>
#include <vector>

#include "lockstep/formats/pickle_reader.h"
#include "lockstep/formats/pickle_text.h"
#include "lockstep/formats/torch_file.h"
#include "lockstep/formats/torch_file_writer.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/memory_file.h"
#include "tests/fuzz/zip_sums.h"
#include "tests/support/temporary_directory.h"
#include "tests/unit/formats/pickle_bytes.h"

namespace torch_files_test {

using namespace lockstep;
using namespace lockstep::internal;
using namespace lockstep::testing;
using namespace std::string_literals;

namespace {

constexpr std::uint64_t kMostTensorBytes = 1 << 16;  // that a test reads of a file that claims more
const std::vector<ErrorKind> kKinds = {ErrorKind::corrupt_data, ErrorKind::invalid_argument};

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
      value_text(value);
      if (value.state()) visit(*value.state());
      return;
    case PickleKind::opaque:
      value_text(value);
      visit(value.arguments());
      if (value.items()) visit(*value.items());
      if (value.state()) visit(*value.state());
      return;
    case PickleKind::tensor:
    case PickleKind::storage: value.tensor(); return;
    default: value_text(value);
  }
}

void load(fuzz::MemoryFile& memory, ByteView bytes) {
  const TorchFile file(memory.open(bytes), 0, bytes.size(), "input");
  for (const NamedPickleValue& each : flatten(file.root())) {
    if (!each.value.is_tensor()) {
      value_text(each.value);
      continue;
    }
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

// What is not known, in all its shapes.
Bytes opaque_example() {
  return kProtocol2 + "}q\0("s + text("args") + global("argparse", "Namespace") + ")\x81q\1}" + text("me") + "h\1sb" +
         text("list") + global("a", "L") + ")\x81(K\1h\1e" + text("dict") + global("a", "D") + ")R(K\1N" + text("w") +
         tensor(storage("0", 4), 0, numbers({2}), numbers({1})) + "u" + text("path") + global("pathlib", "PosixPath") +
         text("/") + text("a") + "\x86R" + text("large") + "\x8a\x09" + std::string(9, '\x81') + "K\1K\2\x86" +
         text("by a pair") + "u.";
}

// Tensors of parts, and those whose elements are changed.
Bytes parts_example() {
  const Bytes four = storage("0", 4);
  const Bytes dense = tensor(four, 0, numbers({2}), numbers({1}));
  return kProtocol2 + "](" + global("torch._utils", "_rebuild_sparse_tensor") +
         global("torch.serialization", "_get_layout") + text("torch.sparse_csr") + "\x85R(" + dense + dense + dense +
         numbers({2, 2}) + "t\x86R" + global("torch._utils", "_rebuild_qtensor") + "((" + text("storage") +
         global("torch", "QInt8Storage") + text("0") + text("cpu") + "K\4tQK\0"s + numbers({4}) + numbers({1}) + "(" +
         global("torch", "per_tensor_affine") + "K\1K\0t\x89NtR"s + global("torch._utils", "_rebuild_tensor_v2") +
         "((" + text("storage") + global("torch", "ComplexFloatStorage") + text("0") + text("cpu") + "K\2tQK\0"s +
         numbers({2}) + numbers({1}) + "\x89N}" + text("conj") + "\x88stR" + global("torch", "FloatTensor") + ")\x81(" +
         four + "K\1" + numbers({3}) + numbers({1}) + "tb(" + text("storage") + global("torch", "FloatStorage") +
         text("0") + text("cpu") + "K\4(" + text("1") + "K\1K\2ttQe.";
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
  for (const char* name : {"_rebuild_parameter", "_rebuild_sparse_tensor", "_rebuild_qtensor", "_rebuild_nested_tensor",
                           "_rebuild_meta_tensor_no_storage", "_rebuild_wrapper_subclass", "_rebuild_tensor_v3"}) {
    words.push_back(global("torch._utils", name));
  }
  for (const char* word : {"0", "1", "\x92", "\x8a\x09", "\x8b\x09"}) words.emplace_back(word);
  words.push_back(global("a", "B"));
  words.push_back(global("torch", "FloatTensor"));
  words.push_back(global("torch", "complex64"));
  words.push_back(global("builtins", "getattr"));
  words.push_back(tensor(storage("0", 4), 1, numbers({2}), numbers({1})));
  return words;
}

}  // namespace

TEST_CASE("pickles") {
  fuzz::run({.name = "pickles",
             .seeds = {pickle_example(), object_example(), opaque_example(), parts_example()},
             .words = pickle_words(),
             .kinds = kKinds,
             .memory_limit = std::size_t{2} << 20,
             .parse = [](ByteView bytes) {
               const auto tree = read_pickle(Bytes(bytes), "input");
               visit(tree->root());
               flatten(tree->root());
             }});
}

TEST_CASE("files of torch.save") {
  const TemporaryDirectory directory;
  const Bytes sixteen = "0123456789abcdef";
  const ByteSpan data = std::as_bytes(std::span(sixteen));
  using Dict = TorchValue::Dict;
  write_torch_file(directory / "a.pt", {Dict{{"w", {tensor_of("F32", {2, 2}, data)}},
                                             {"half", {tensor_of("U16", {4}, data.first(8))}},
                                             {"step", {std::int64_t{1}}}}});
  fuzz::MemoryFile memory;
  fuzz::run(
      {.name = "files of torch.save",
       .seeds = {slurp(directory / "a.pt")},
       .words = {"PK\1\2", "PK\3\4", "PK\5\6", "PK\6\6", "PK\6\7", "PK\7\x08", "archive/data/0", "\xff\xff\xff\xff"},
       .repair = [](Bytes& bytes, fuzz::Random&) { fuzz::repair_sums(bytes); },
       .kinds = kKinds,
       .memory_limit = std::size_t{4} << 20,
       .parse = [&](ByteView bytes) { load(memory, bytes); }});
}

TEST_CASE("legacy files of torch.save") {
  const Bytes machine = kProtocol2 + "}" + text("little_endian") + "\x88s.";
  const auto with = [&](const Bytes& pickle) {
    return Bytes("\x80\x02\x8a\x0al\xfc\x9c\x46\xf9\x20j\xa8\x50\x19.", 15) + kProtocol2 + "M\xe9\3." + machine +
           pickle + kProtocol2 + "]" + text("0") + "a." + little_endian(4, 8) + "0123456789abcdef";
  };
  fuzz::MemoryFile memory;
  fuzz::run({.name = "legacy files of torch.save",
             .seeds = {with(pickle_example()), with(opaque_example()), with(parts_example())},
             .words = pickle_words(),
             .kinds = kKinds,
             .memory_limit = std::size_t{4} << 20,
             .parse = [&](ByteView bytes) { load(memory, bytes); }});
}

}  // namespace torch_files_test
