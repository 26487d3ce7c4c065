#include "lockstep/train/checkpoint/torch_files.h"

#include <torch/torch.h>

// doctest's CHECK replaces the one of torch's logging.
#include <doctest/doctest.h>

#include "lockstep/formats/sharded_safetensors.h"
#include "lockstep/train/checkpoint/module_state.h"
#include "tests/support/command.h"
#include "tests/support/expect_error.h"
#include "tests/support/temporary_directory.h"

namespace torch_files_test {

using namespace lockstep;
using namespace lockstep::internal;

namespace {

// Submodules, a buffer, and one with both.
struct Net : torch::nn::Module {
  Net() {
    linear = register_module("linear", torch::nn::Linear(3, 4));
    norm = register_module("norm", torch::nn::BatchNorm1d(4));
    register_buffer("count", torch::tensor(std::int64_t{7}));
  }
  at::Tensor forward(const at::Tensor& input) { return norm(linear(input)).sum(); }

  torch::nn::Linear linear{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
};

void check_equal(const at::Tensor& found, const at::Tensor& expected) {
  CHECK((found.scalar_type() == expected.scalar_type()));
  REQUIRE(found.sizes().vec() == expected.sizes().vec());
  CHECK(at::equal(found, expected));
}

int python(const std::string& program, const std::string& path) {
  return run_command({LOCKSTEP_PYTHON, "-W", "ignore", "-c", "import sys, torch; path = sys.argv[1]\n" + program, path})
      .exit_code;
}

// Steps twice, saves the optimizer, and counts the tensors in the file: of the state of four parameters, and two sizes.
template <class Optimizer>
std::size_t state_tensors(Optimizer optimizer, Net& net, const std::string& path) {
  for (int step = 0; step < 2; ++step) {
    optimizer.zero_grad();
    net.forward(torch::ones({5, 3}) * (step + 1)).backward();
    optimizer.step();
  }
  torch::save(optimizer, path);
  const Checkpoint loaded = load_torch_file(path);
  CHECK(loaded.metadata.at("pytorch_version") == "1.5.0");
  CHECK(loaded.tensors.at("param_groups.param_groups/size").item<std::int64_t>() == 1);
  return loaded.tensors.size();
}

}  // namespace

// feature: H-08
TEST_CASE("tensors that C++ has saved") {
  const TemporaryDirectory directory;
  const std::string path = directory / "a.pt";
  const at::Tensor one = torch::arange(6, torch::kFloat).reshape({2, 3}).t();
  torch::save(one, path);
  check_equal(load_torch_file(path).tensors.at("0"), one);
  const std::vector<at::Tensor> several = {torch::arange(4), torch::ones({2}, torch::kBFloat16), torch::tensor(true)};
  torch::save(several, path);
  const Checkpoint loaded = load_torch_file(path);
  REQUIRE(loaded.tensors.size() == 3);
  for (std::size_t i = 0; i < 3; ++i) check_equal(loaded.tensors.at(std::to_string(i)), several[i]);
}

// feature: H-06
TEST_CASE("tensors of a device go where the map says") {
  const TemporaryDirectory directory;
  const std::string path = directory / "a.pt";
  save_torch_file(path, {{"weight", torch::ones({2})}});
  CHECK(load_torch_file(path, {{"cpu", "meta"}}).tensors.at("weight").is_meta());
  CHECK(load_torch_file(path, {{"cuda:0", "meta"}}).tensors.at("weight").is_cpu());
  CHECK_ERROR(error_of([&] { load_torch_file(path, {{"cpu", "gpu:1"}}); }), ErrorKind::invalid_argument, "'gpu:1'");
}

TEST_CASE("a module that C++ has saved goes into another one") {
  const TemporaryDirectory directory;
  const auto net = std::make_shared<Net>();
  torch::save(net, directory / "a.pt");
  const Checkpoint loaded = load_torch_file(directory / "a.pt");
  CHECK(loaded.tensors.size() == 8);
  Net other;
  load_module(loaded, other, "");
  for (const auto& item : net->named_parameters()) check_equal(other.named_parameters()[item.key()], item.value());
  for (const auto& item : net->named_buffers()) check_equal(other.named_buffers()[item.key()], item.value());
}

TEST_CASE("optimizers that C++ has saved") {
  const TemporaryDirectory directory;
  const std::string path = directory / "a.pt";
  Net net;
  const auto parameters = net.parameters();
  using namespace torch::optim;
  CHECK(state_tensors(SGD(parameters, SGDOptions(0.1).momentum(0.9)), net, path) == 6);
  CHECK(state_tensors(Adam(parameters), net, path) == 10);
  CHECK(state_tensors(AdamW(parameters, AdamWOptions().amsgrad(true)), net, path) == 14);
  CHECK(state_tensors(RMSprop(parameters), net, path) == 6);
  CHECK(state_tensors(Adagrad(parameters), net, path) == 6);
}

TEST_CASE("a state dict of Python goes into a module, and what is no tensor into the metadata") {
  const TemporaryDirectory directory;
  const std::string path = directory / "a.pt";
  REQUIRE(python(R"(
net = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
torch.manual_seed(1)
optimizer = torch.optim.Adam(net.parameters(), lr=0.5)
torch.save({"model": net.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3, "best": 0.25, "whole": 2.0,
            "note": "x", "done": True, "none": None, "device": torch.device("cuda", 1), "raw": b"\x01\xff",
            "type": torch.float16}, path)
)",
                 path) == 0);
  const Checkpoint loaded = load_torch_file(path);
  torch::nn::Sequential net(torch::nn::Linear(3, 2), torch::nn::BatchNorm1d(2));
  load_module(loaded, *net);
  check_equal(net->named_parameters()["0.weight"], loaded.tensors.at("model.0.weight"));
  const std::map<std::string, std::string> expected = {{"epoch", "3"},
                                                       {"best", "0.25"},
                                                       {"whole", "2.0"},
                                                       {"note", "x"},
                                                       {"done", "True"},
                                                       {"none", "None"},
                                                       {"device", "cuda:1"},
                                                       {"raw", "01ff"},
                                                       {"type", "torch.float16"},
                                                       {"optimizer.param_groups.0.lr", "0.5"}};
  for (const auto& [name, text] : expected) {
    CAPTURE(name);
    CHECK(loaded.metadata.at(name) == text);
  }
}

TEST_CASE("Python reads the tensors that are saved, of every type and of any layout") {
  const TemporaryDirectory directory;
  const std::string path = directory / "a.pt";
  const at::Tensor base = torch::arange(6, torch::kFloat).reshape({2, 3});
  std::map<std::string, at::Tensor> tensors = {{"fc.weight", base.t().requires_grad_()},
                                               {"row", base[1]},
                                               {"wide", torch::tensor(2.5).expand({2, 2})},
                                               {"none", torch::ones({0, 2})}};
  for (const auto type : {at::kBool, at::kByte, at::kChar, at::kUInt16, at::kShort, at::kHalf, at::kBFloat16,
                          at::kUInt32, at::kInt, at::kUInt64, at::kLong, at::kDouble, at::kFloat8_e4m3fn,
                          at::kFloat8_e5m2, at::kFloat8_e4m3fnuz, at::kFloat8_e5m2fnuz, at::kFloat8_e8m0fnu}) {
    tensors[c10::toString(type)] = torch::ones({3}).to(type);
  }
  save_torch_file(path, tensors);
  const Checkpoint loaded = load_torch_file(path);
  REQUIRE(loaded.tensors.size() == tensors.size());
  for (const auto& [name, tensor] : tensors) {
    CAPTURE(name);
    check_equal(loaded.tensors.at(name).to(at::kFloat), tensor.detach().to(at::kFloat));
  }
  CHECK(python(R"(
state = torch.load(path, weights_only=True)
assert torch.equal(state["fc.weight"], torch.arange(6.).reshape(2, 3).t()), state
assert torch.equal(state["row"], torch.tensor([3., 4., 5.])) and state["wide"].tolist() == [[2.5, 2.5]] * 2
assert state["none"].shape == (0, 2) and state["UInt16"].dtype == torch.uint16
assert state["Float8_e5m2"].dtype == torch.float8_e5m2 and state["Float8_e8m0fnu"].dtype == torch.float8_e8m0fnu
assert state["Double"].tolist() == [1, 1, 1]
)",
               path) == 0);
  const at::Tensor quantised = at::quantize_per_tensor(base, 0.1, 0, at::kQInt8);
  CHECK_ERROR(error_of([&] {
                save_torch_file(path, {{"odd", quantised}});
              }),
              ErrorKind::invalid_argument, "'odd'", "QInt8");
  CHECK_ERROR(error_of([&] {
                save_torch_file(path, {{"odd", at::Tensor()}});
              }),
              ErrorKind::invalid_argument, "undefined");
}

TEST_CASE("complex tensors are complex in Python, and so are its own here") {
  const TemporaryDirectory directory;
  const std::string path = directory / "a.pt";
  const at::Tensor waves = at::complex(torch::arange(6, at::kFloat), torch::ones({6})).reshape({2, 3});
  const std::map<std::string, at::Tensor> tensors = {{"waves", waves},
                                                     {"double", waves.to(at::kComplexDouble)},
                                                     {"half", waves.to(at::kComplexHalf)},
                                                     {"conjugate", waves.conj()},
                                                     {"turned", waves.t()}};
  save_torch_file(path, tensors);
  CHECK(python(R"(
waves = torch.complex(torch.arange(6.), torch.ones(6)).reshape(2, 3)
state = torch.load(path, weights_only=True)
expected = dict(waves=waves, double=waves.to(torch.complex128), conjugate=waves.conj(), turned=waves.t())
for name, tensor in expected.items():
    assert state[name].dtype == tensor.dtype and torch.equal(state[name], tensor), name
assert torch.equal(torch.view_as_real(state["half"]), torch.view_as_real(waves).half())
torch.save(state | {"lazy": waves.conj(), "imaginary": waves.clone().conj().imag}, path)
)",
               path) == 0);
  const Checkpoint loaded = load_torch_file(path);
  REQUIRE(loaded.tensors.size() == 7);
  for (const char* name : {"waves", "double", "conjugate", "turned"})
    check_equal(loaded.tensors.at(name), tensors.at(name));
  check_equal(at::view_as_real(loaded.tensors.at("half")), at::view_as_real(tensors.at("half")));
  check_equal(loaded.tensors.at("lazy"), waves.conj());
  check_equal(loaded.tensors.at("imaginary"), -torch::ones({2, 3}));
}

TEST_CASE("tensors that are not plain elements are read as their parts, beside values that are not known") {
  const TemporaryDirectory directory;
  const std::string path = directory / "a.pt";
  CHECK(python(R"(
import argparse, pathlib
torch.save({"w": torch.ones(2), "sparse": torch.eye(2).to_sparse(), "args": argparse.Namespace(lr=1),
            "path": pathlib.PurePosixPath("/a/b"), "storage": torch.ones(3).storage()}, path)
)",
               path) == 0);
  const Checkpoint loaded = load_torch_file(path);
  CHECK(loaded.tensors.size() == 4);
  check_equal(loaded.tensors.at("w"), torch::ones({2}));
  check_equal(loaded.tensors.at("sparse.values"), torch::ones({2}));
  check_equal(loaded.tensors.at("storage"), torch::ones({3}));
  CHECK(loaded.metadata.at("sparse.layout") == "torch.sparse_coo");
  CHECK(loaded.metadata.at("args") == "<argparse.Namespace>");
  CHECK(loaded.metadata.at("path") == "/a/b");
}

TEST_CASE("a tensor that is negated when it is used is not tied to what it negates") {
  const TemporaryDirectory directory;
  const std::string path = directory / "a.pt";
  const at::Tensor x = torch::arange(3, torch::kFloat);
  save_torch_file(path, {{"negated", at::_neg_view(x)}, {"x", x}});
  const Checkpoint loaded = load_torch_file(path);
  check_equal(loaded.tensors.at("x"), x);
  check_equal(loaded.tensors.at("negated"), -x);
}

TEST_CASE("tied tensors are written once, and PyTorch ties them again") {
  const TemporaryDirectory directory;
  const at::Tensor embedding = torch::arange(6, torch::kFloat).reshape({3, 2});
  const at::Tensor turned = embedding.t();  // of the same memory, but laid out in another way
  save_torch_file(directory / "a.pt",
                  {{"in", embedding}, {"out", embedding}, {"turned", turned}, {"row", embedding[0]}});
  CHECK(python(R"(
state = torch.load(path, weights_only=True)
assert state["in"].data_ptr() == state["out"].data_ptr()
assert len({state[name].data_ptr() for name in ("in", "turned", "row")}) == 3
assert torch.equal(state["turned"], torch.arange(6.).reshape(3, 2).t()) and state["row"].tolist() == [0, 1]
)",
               directory / "a.pt") == 0);
}

TEST_CASE("distributed checkpoints and sharded safetensors") {
  const TemporaryDirectory directory;
  REQUIRE(python(R"(
import torch.distributed.checkpoint as dcp
dcp.save({"model": {"w": torch.arange(6).reshape(2, 3)}, "step": 5, "lr": [0.5, 1.0]}, checkpoint_id=path)
)",
                 directory / "saved") == 0);
  const Checkpoint saved = load_distributed_checkpoint(directory / "saved");
  check_equal(saved.tensors.at("model.w"), torch::arange(6).reshape({2, 3}));
  const std::map<std::string, std::string> metadata = {{"step", "5"}, {"lr.0", "0.5"}, {"lr.1", "1.0"}};
  CHECK(saved.metadata == metadata);

  const std::string bytes = "01234567";
  const ByteSpan span = std::as_bytes(std::span(bytes));
  const std::vector<TensorBytes> tensors = {{"a", "U8", {8}, span}, {"b", "F32", {2}, span}};
  const Checkpoint sharded = load_sharded_safetensors(write_sharded_safetensors(directory.path(), tensors, 8));
  CHECK(sharded.tensors.at("a")[7].item<int>() == '7');
  CHECK(sharded.tensors.at("b").sizes().vec() == std::vector<std::int64_t>{2});
  CHECK(sharded.metadata.at("total_size") == "16");
}

TEST_CASE("a file that claims more than the machine's memory is refused") {
  const TemporaryDirectory directory;
  const std::string path = directory / "a.pt";
  REQUIRE(python("torch.save(torch.ones(1).expand(10**6, 10**9), path)", path) == 0);
  CHECK_ERROR(error_of([&] { load_torch_file(path); }), ErrorKind::invalid_argument, path, "4000000000000000 bytes",
              "of memory");
}

TEST_CASE("the wrong function names the right one") {
  const TemporaryDirectory directory;
  const std::string path = directory / "a.pt";
  save_torch_file(path, {{"a", torch::ones({2})}});
  CHECK_ERROR(error_of([&] { load_checkpoint(path); }), ErrorKind::invalid_argument,
              path + " is a file of torch.save: read it with load_torch_file()");
  save_checkpoint(path, {.tensors = {{"a", torch::ones({2})}}});
  CHECK_ERROR(error_of([&] { load_torch_file(path); }), ErrorKind::invalid_argument,
              path + " is a safetensors file: read it with load_checkpoint()");
}

}  // namespace torch_files_test
