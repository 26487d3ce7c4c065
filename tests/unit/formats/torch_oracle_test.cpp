// Files that go from PyTorch to Lockstep and back.
#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>

#include "lockstep/formats/torch_file.h"
#include "lockstep/formats/torch_file_writer.h"
#include "tests/support/command.h"
#include "tests/support/expect_error.h"
#include "tests/support/skip.h"
#include "tests/support/temporary_directory.h"
#include "tests/unit/formats/torch_description.h"

namespace torch_oracle_test {

using namespace lockstep;
using namespace lockstep::testing;

namespace {

std::string whole(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

bool has_pytorch() {
  static const bool is_there = lockstep::has_pytorch(LOCKSTEP_PYTHON);
  if (!is_there) skip("PyTorch is not installed");
  return is_there;
}

const std::string& oracle_files() {
  static const TemporaryDirectory directory;
  static const bool made =
      run_command({LOCKSTEP_PYTHON, "-B", LOCKSTEP_TORCH_ORACLE, "make", directory.path()}).exit_code == 0;
  REQUIRE(made);
  return directory.path();
}

// A description of everything that can be written.
TorchValue everything(std::vector<std::string>& memory) {
  TorchValue::Dict tensors;
  const std::vector<std::pair<std::string, std::size_t>> types = {
      {"BOOL", 1}, {"U8", 1},  {"I8", 1},  {"U16", 2}, {"I16", 2}, {"F16", 2},     {"BF16", 2},   {"U32", 4},
      {"I32", 4},  {"F32", 4}, {"U64", 8}, {"I64", 8}, {"F64", 8}, {"F8_E4M3", 1}, {"F8_E5M2", 1}};
  memory.reserve(types.size());
  for (const auto& [type, size] : types) {
    std::string& bytes = memory.emplace_back(6 * size, '\1');
    for (std::size_t i = 0; type != "BOOL" && i < bytes.size(); ++i) bytes[i] = static_cast<char>(i * 29 % 100);
    const ByteSpan span = std::as_bytes(std::span(bytes));
    tensors.emplace_back(type, TorchValue{tensor_of(type, {2, 3}, span)});
    tensors.emplace_back(type + " 0-d", TorchValue{tensor_of(type, {}, span.first(size))});
    tensors.emplace_back(type + " empty", TorchValue{tensor_of(type, {0, 4}, {})});
  }
  const ByteSpan pieces = std::as_bytes(std::span(memory.back()));
  TorchTensorSource in_pieces{.dtype = "U8", .shape = {6}, .write = {}, .requires_grad = false};
  in_pieces.write = [pieces](const ByteSink& sink) {
    for (const std::byte& each : pieces) sink({&each, 1});
  };
  using Dict = TorchValue::Dict;
  return {Dict{{"tensors", {tensors}},
               {"pieces", {in_pieces}},
               {"none", {nullptr}},
               {"flags", {TorchValue::List{{true}, {false}}}},
               {"pair", {TorchValue::Tuple{{{std::int64_t{1}}, {std::string("x")}}}}},
               {"no items", {TorchValue::Tuple{}}},
               {"numbers",
                {TorchValue::List{{std::int64_t{0}},
                                  {std::int64_t{255}},
                                  {std::int64_t{256}},
                                  {std::int64_t{-1}},
                                  {INT64_MAX},
                                  {INT64_MIN},
                                  {0.1},
                                  {-1e300}}}},
               {"text", {std::string("ä\n")}},
               {"nothing", {Dict{}}},
               {"state", {Dict{{std::int64_t{0}, {Dict{{"m", {std::int64_t{1}}}}}}, {std::int64_t{-3}, {2.5}}}}}}};
}

}  // namespace

TEST_CASE("what torch.save writes, in both formats" * needs("pytorch")) {
  if (!has_pytorch()) return;
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(oracle_files())) {
    const std::string path = entry.path().string();
    if (!std::filesystem::exists(path + ".txt")) continue;
    CAPTURE(path);
    const TorchFile file(path);
    CHECK(description(file) == whole(path + ".txt"));
    ++files;
  }
  CHECK(files == 46);
}

TEST_CASE("tensors that Lockstep does not read are refused by name" * needs("pytorch")) {
  if (!has_pytorch()) return;
  const auto refused = [](const std::string& name) {
    return error_of([&] { TorchFile file(oracle_files() + "/refused " + name); });
  };
  CHECK_ERROR(refused("complex"), ErrorKind::invalid_argument, "refused complex", "a complex tensor", "view_as_real");
  CHECK_ERROR(refused("sparse"), ErrorKind::invalid_argument, "a sparse tensor", "to_dense()");
  CHECK_ERROR(refused("csr"), ErrorKind::invalid_argument, "a sparse tensor");
  CHECK_ERROR(refused("quantised"), ErrorKind::invalid_argument, "a quantised tensor");
  CHECK_ERROR(refused("negated"), ErrorKind::invalid_argument, "negated", "resolve_neg()");
  CHECK_ERROR(refused("meta"), ErrorKind::invalid_argument, "meta");
  CHECK_ERROR(refused("module"), ErrorKind::invalid_argument, "'torch.nn.modules.linear.Linear'", "executes nothing");
  CHECK_ERROR(refused("function"), ErrorKind::invalid_argument, "'torch.serialization.save'", "executes nothing");
}

TEST_CASE("TorchScript is read for its tensors" * needs("pytorch")) {
  if (!has_pytorch()) return;
  const TorchFile file(oracle_files() + "/script.pt");
  const PickleValue state = *file.root().state();
  CHECK(file.tensor(state.at("weight")).shape == std::vector<std::int64_t>{2, 3});
  CHECK(file.tensor(state.at("weight")).requires_grad);
}

TEST_CASE("PyTorch ties tensors of one memory, as its own files do" * needs("pytorch")) {
  if (!has_pytorch()) return;
  const TemporaryDirectory directory;
  const std::string bytes(24, 'x');
  TorchTensorSource tied = tensor_of("F32", {2, 3}, std::as_bytes(std::span(bytes)));
  const TorchTensorSource alone = tied;
  tied.storage = "embedding";
  using Dict = TorchValue::Dict;
  write_torch_file(directory / "a.pt", {Dict{{"in", {tied}}, {"out", {tied}}, {"alone", {alone}}}});
  const char* const program =
      "import sys, torch\n"
      "a = torch.load(sys.argv[1], weights_only=True)\n"
      "assert a['in'].data_ptr() == a['out'].data_ptr() != a['alone'].data_ptr()\n"
      "a['in'].fill_(3)\n"
      "assert a['out'].eq(3).all() and not a['alone'].eq(3).any()\n";
  CHECK(run_command({LOCKSTEP_PYTHON, "-c", program, directory / "a.pt"}).exit_code == 0);
}

TEST_CASE("PyTorch reads what Lockstep writes" * needs("pytorch")) {
  if (!has_pytorch()) return;
  const TemporaryDirectory directory;
  std::vector<std::string> memory;
  write_torch_file(directory / "a.pt", everything(memory));
  const CommandResult read =
      run_command({LOCKSTEP_PYTHON, "-B", LOCKSTEP_TORCH_ORACLE, "describe", directory / "a.pt"});
  CHECK(read.exit_code == 0);
  CHECK(read.output == description(TorchFile(directory / "a.pt")));
  CHECK(contains(read.output, "tensors.U16 tensor U16 [2, 3] 00 001d3a57"));
  CHECK(contains(read.output, "state.0.m int 1\nstate.-3 float 4004"));
  CHECK(contains(read.output, "pair.0 int 1\npair.1 str 78\n"));
  const TorchFile file(directory / "a.pt");
  CHECK(file.root().at("flags").is(PickleKind::list));
  CHECK(file.root().at("pair").is(PickleKind::tuple));
  CHECK(file.root().at("no items").is(PickleKind::tuple));
}

}  // namespace torch_oracle_test
