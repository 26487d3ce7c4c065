// Files that go from PyTorch to Lockstep and back.
#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>

#include "lockstep/formats/safetensors/torch_types.h"
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
  memory.reserve(internal::kTorchTypes.size());
  for (const internal::TorchType& each : internal::kTorchTypes) {
    const std::string type(each.name);
    const std::size_t size = each.element_bytes;
    std::string& bytes = memory.emplace_back(6 * size, '\1');
    for (std::size_t i = 0; type != "BOOL" && i < bytes.size(); ++i) bytes[i] = static_cast<char>(i * 29 % 100);
    const ByteSpan span = std::as_bytes(std::span(bytes));
    tensors.emplace_back(type, TorchValue{tensor_of(type, {2, 3}, span)});
    tensors.emplace_back(type + " 0-d", TorchValue{tensor_of(type, {}, span.first(size))});
    tensors.emplace_back(type + " empty", TorchValue{tensor_of(type, {0, 4}, {})});
  }
  const ByteSpan pieces = std::as_bytes(std::span(memory.back())).first(6);
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
  CHECK(files == 50);
}

TEST_CASE("values of classes that Lockstep does not know are opaque, and what is beside them is read" *
          needs("pytorch")) {
  if (!has_pytorch()) return;
  for (const std::string prefix : {"/", "/legacy "}) {
    const std::string text = description(TorchFile(oracle_files() + prefix + "strangers"));
    CAPTURE(text);
    for (const char* line :
         {"w tensor F32 [2] 00 000000000000803f\nepoch int 3\nargs opaque argparse.Namespace\n",
          "args.weights tensor F32 [3] 00 0000803f0000803f0000803f\n", "colour opaque __main__.Colour\n",
          "row opaque __main__.Row\nrow.0 tensor F32 [4]", "table opaque __main__.Table\ntable.a tensor F32 [1]",
          "\ntable.note tensor F32 [2]", "pair opaque __main__.Pair\npair.arguments.0 tensor F32 [5]",
          "path object /data/x.txt\nroot object /\nhere object a/b\nnone object .\ndrive object C:\\x\\y\n",
          "function name torch.nn.functional.relu\n", "queue opaque collections.deque\nqueue.0 tensor F32 [6]",
          "\nlast tensor F32 [1] 00 0000803f\n"}) {
      CHECK_MESSAGE(contains(text, line), line);
    }
    const std::string model = description(TorchFile(oracle_files() + prefix + "whole model"));
    CAPTURE(model);
    CHECK(contains(model, " opaque torch.nn.modules.container.Sequential\n"));
    CHECK(contains(model, "_modules.0._parameters.weight tensor F32 [2, 1] 11 "));
  }
}

TEST_CASE("a file with nothing that is understood is refused by name" * needs("pytorch")) {
  if (!has_pytorch()) return;
  const auto refused = [](const std::string& name) {
    return error_of([&] { TorchFile file(oracle_files() + "/" + name); });
  };
  CHECK_ERROR(refused("nothing"), ErrorKind::invalid_argument, "the file holds only 'argparse.Namespace'",
              "executes nothing");
  CHECK_ERROR(refused("function"), ErrorKind::invalid_argument, "the file holds only 'torch.serialization.save'");
  CHECK_ERROR(refused("legacy function"), ErrorKind::invalid_argument, "'torch.serialization.save'");
}

TEST_CASE("other protocols of pickles" * needs("pytorch")) {
  if (!has_pytorch()) return;
  for (const char* name : {"/protocol 1", "/protocol 3", "/legacy protocol 3"}) {
    CAPTURE(name);
    CHECK(description(TorchFile(oracle_files() + name)) == "a.0 int 1\na.1 str 78\n");
  }
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
