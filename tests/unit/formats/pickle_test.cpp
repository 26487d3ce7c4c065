#include <doctest/doctest.h>
#include <sys/resource.h>

#include <filesystem>

#include "lockstep/formats/pickle_reader.h"
#include "lockstep/formats/pickle_text.h"
#include "tests/support/expect_error.h"
#include "tests/support/forked_child.h"
#include "tests/support/sanitized.h"
#include "tests/support/temporary_directory.h"
#include "tests/unit/formats/pickle_bytes.h"

namespace pickle_test {

using namespace lockstep;
using namespace lockstep::internal;
using namespace lockstep::testing;
using namespace std::string_literals;

namespace {

struct HostilePickle {
  std::string what;
  std::string body;  // between protocol and end
  std::string says;
};

Error refusal(const std::string& pickle) {
  return error_of([&] { read_pickle(pickle, "x.pt"); });
}

std::string times(std::size_t count, const std::string& part) {
  std::string all;
  for (std::size_t i = 0; i < count; ++i) all += part;
  return all;
}

// What would run something in Python.
std::vector<HostilePickle> programs(const std::string& trap) {
  const std::string command = text("touch " + trap);
  const std::string code = text("open('" + trap + "','w')");
  return {
      {"os.system", global("os", "system") + command + "\x85R", "'os.system'"},
      {"posix.system", global("posix", "system") + command + "\x85R", "'posix.system'"},
      {"nt.system", global("nt", "system") + command + "\x85R", "'nt.system'"},
      {"a module in it", global("os.path", "exists") + command + "\x85R", "'os.path.exists'"},
      {"sys", global("sys", "exit"), "'sys.exit'"},
      {"eval", global("builtins", "eval") + code + "\x85R", "'builtins.eval'"},
      {"exec", global("builtins", "exec") + code + "\x85R", "'builtins.exec'"},
      {"Python 2's eval", global("__builtin__", "eval") + code + "\x85R", "'__builtin__.eval'"},
      {"__import__", global("builtins", "__import__") + text("os") + "\x85R", "'builtins.__import__'"},
      {"compile", global("builtins", "compile"), "'builtins.compile'"},
      {"open", global("io", "open") + text(trap) + "\x85R", "'io.open'"},
      {"subprocess", global("subprocess", "Popen") + command + "\x85R", "'subprocess.Popen'"},
      {"shutil", global("shutil", "rmtree") + text("/") + "\x85R", "'shutil.rmtree'"},
      {"pickle in pickle", global("_pickle", "loads"), "'_pickle.loads'"},
      {"a name on the stack", text("os") + text("system") + "\x93", "'os.system'"},
      {"STACK_GLOBAL of numbers", "K\1K\2\x93", "a name is an int"},
      {"INST", "(" + command + "ios\nsystem\n", "opcode INST"},
      {"OBJ", "(" + global("torch", "device") + command + "o", "opcode OBJ"},
      {"EXT1", "\x82\1", "opcode EXT1"},
      {"EXT2", "\x83\1\1", "opcode EXT2"},
      {"EXT4", "\x84\1\1\1\1", "opcode EXT4"},
      {"PERSID", "Pstorage\n", "opcode PERSID"},
      {"BUILD on a str", text("x") + "}b", "a str cannot have a state"},
      {"BUILD on a list", "]}b", "a list cannot have a state"},
      {"REDUCE of a str", text("os.system") + command + "\x85R", "the callee of a call is a str"},
      {"NEWOBJ of a str", text("os.system") + ")\x81", "the class of a new object is a str"},
      {"NEWOBJ_EX of a str", text("os.system") + ")}\x92", "the class of a new object is a str"},
      {"REDUCE of a type", global("torch", "FloatStorage") + "K\5\x85R", "only as a name"},
      {"REDUCE of a constant", global("torch", "float32") + ")R", "only as a name: it executes nothing"},
      {"REDUCE without tuple", global("torch", "Size") + "]R", "is a list, not a tuple"},
      {"REDUCE of a stranger without tuple", global("a", "B") + "]R", "is a list, not a tuple"},
      {"NEWOBJ of a function", global("torch._utils", "_rebuild_tensor_v2") + ")\x81", "does not read objects of"},
  };
}

// What Lockstep does not know, and the name that it is given.
std::vector<HostilePickle> strangers(const std::string& trap) {
  const std::string command = text("touch " + trap);
  return {
      {"a class", global("a.b", "C") + ")\x81", "a.b.C"},
      {"a function", global("functools", "partial") + command + "\x85R", "functools.partial"},
      {"what a stranger makes is called", global("operator", "methodcaller") + command + "\x85R" + command + "\x85R",
       "operator.methodcaller"},
      {"a state", global("argparse", "Namespace") + ")\x81}" + text("x") + "K\1sb", "argparse.Namespace"},
      {"protocol 1", global("copyreg", "_reconstructor") + global("a", "B") + global("builtins", "object") + "N\x87R",
       "a.B"},
      {"arguments by name", global("a", "B") + ")}\x92", "a.B"},
      {"numpy", global("numpy._core.multiarray", "scalar") + command + "\x85R", "numpy._core.multiarray.scalar"},
      {"torch.load", global("torch.serialization", "load") + command + "\x85R", "torch.serialization.load"},
      {"bytes of torch", global("torch.storage", "_load_from_bytes") + "C\1x\x85R", "torch.storage._load_from_bytes"},
      {"a name with dots", global("torch", "serialization.os.system") + command + "\x85R",
       "torch.serialization.os.system"},
      {"an empty name", global("torch", "") + ")R", "torch."},
      {"an empty module", global("", "torch.Size") + ")R", ".torch.Size"},
      {"a list of its own", global("a", "List") + ")\x81(K\1K\2e", "a.List"},
      {"a dict of its own", global("a", "Dict") + ")\x81(K\1K\2u", "a.Dict"},
      {"a tensor of another type", global("torch._utils", "_rebuild_tensor_v9") + "(K\1tR",
       "torch._utils._rebuild_tensor_v9"},
      {"a storage of another type",
       "(" + text("storage") + global("torch", "NewStorage") + text("0") + text("cpu") + "K\1tQ", "torch.NewStorage"},
      {"a tensor in it",
       tensor("(" + text("storage") + global("torch", "NewStorage") + text("0") + text("cpu") + "K\1tQ", 0,
              numbers({1}), numbers({1})),
       "torch.NewStorage"},
      {"a shape that is not known", tensor(storage("0", 4), 0, "(" + global("a", "Int") + ")Rt", numbers({1})),
       "a.Int"},
      {"an encoding", global("_codecs", "encode") + text("x") + text("rot13") + "\x86R", "_codecs.encode"},
  };
}

// What is no pickle.
std::vector<HostilePickle> malformed() {
  return {
      {"nothing", "", "it ends with 0 values"},
      {"two values", "NN", "it ends with 2 values"},
      {"an open mark", "N(", "it ends with 2 values"},
      {"no such opcode", "\xff", "unsupported pickle opcode 0xff"},
      {"APPEND to nothing", "Na", "needs a value"},
      {"APPEND to a dict", "}Na", "added to a dict"},
      {"APPENDS without mark", "]Ne", "needs a mark"},
      {"SETITEM in a list", "]NNs", "not in a dict"},
      {"SETITEMS of three", "}(NNNu", "a key has no value"},
      {"a list as key", "}]Ns", "the key of a dict is a list"},
      {"below the mark", "N(\x85", "needs a value"},
      {"TUPLE without mark", "t", "needs a mark"},
      {"an empty memo", "h\5", "memo 5 is empty"},
      {"a memo far away", "Nr\xff\xff\xff\x7f", "memo 2147483647"},
      {"a huge str", "X\xff\xff\xff\xff", "truncated"},
      {"an endless str", "\x8d" + little_endian(~0ULL, 8), "truncated"},
      {"endless bytes", "\x8e" + little_endian(1ULL << 62, 8), "truncated"},
      {"a huge int", "\x8b\0\1\0\0"s + std::string(256, '\1'), "the limit is 255"},
      {"an int that ends", "\x8a\x09"s + std::string(8, '\1'), "truncated"},
      {"a wrong frame", "\x95" + little_endian(1ULL << 40, 8), "a frame of 1099511627776 bytes"},
      {"no UTF-8", text("\xff\xfe"), "not UTF-8"},
      {"half a surrogate", text("\xed\xa0"), "not UTF-8"},
      {"a class that is not UTF-8", global("a", "\xff"), "not UTF-8"},
      {"an overlong character", text("\xc0\x80"), "not UTF-8"},
      {"an endless name", "c" + std::string(5000, 'x'), "a name is longer"},
      {"a protocol again", "\x80\2N", "the protocol appears twice"},
      {"a deep list", times(500, "]") + times(499, "a"), "deeper than 400"},
      {"a deep tuple", ")" + times(100'000, "\x85"), "deeper than 400"},
      {"doubled again and again", "]" + times(64, "2"), "opcode DUP"},
      {"a billion laughs", "(Nq\0"s + times(60, "h\0h\0\x86q\0"s) + "t", "shared values would expand"},
      {"copies of one list",
       "(](" + times(3000, "N") + "eq\0"s + global("builtins", "set") + "q\1" + times(3000, "h\1h\0\x85R"s) + "t",
       "copied too often"},
  };
}

// Tensors that cannot be.
std::vector<HostilePickle> tensors() {
  const std::string four = storage("0", 4);
  const std::string many = "(" + times(65, "K\1") + "t";
  return {
      {"a negative dimension", tensor(four, 0, numbers({0xffffffff}), numbers({1})), "invalid dimension -1"},
      {"a negative stride", tensor(four, 0, numbers({2}), numbers({0xffffffff})), "invalid dimension -1"},
      {"a negative offset", tensor(four, 0xffffffff, numbers({2}), numbers({1})), "begins at the invalid offset -1"},
      {"more strides than dimensions", tensor(four, 0, numbers({2}), numbers({1, 1})),
       "different numbers of dimensions and strides"},
      {"65 dimensions", tensor(four, 0, many, many), "the limit is 64"},
      {"a shape of texts", tensor(four, 0, "(" + text("2") + "t", numbers({1})), "is a str, not an int"},
      {"a storage of texts", tensor(text("0"), 0, numbers({2}), numbers({1})), "is a str, not a storage"},
      {"a negative storage", storage("0", 0xffffffff), "the size of a storage is -1"},
      {"no storage", "(" + text("module") + "NNNNtQ", "does not name a storage"},
      {"a short id", text("storage") + "\x85Q", "does not name a storage"},
      {"an id that is a str", text("0") + "Q", "is a str, not a tuple"},
      {"no type of storages", "(" + text("storage") + global("torch", "float32") + text("0") + text("cpu") + "K\1tQ",
       "not a storage type"},
      {"a quantised tensor of floats",
       global("torch._utils", "_rebuild_qtensor") + "(" + four + "K\0"s + numbers({4}) + numbers({1}) + "(NNNt\x89NtR",
       "has elements of torch.FloatStorage"},
      {"a sparse tensor of two values",
       global("torch._utils", "_rebuild_sparse_tensor") + "(" + global("torch.serialization", "_get_layout") +
           text("torch.sparse_coo") + "\x85R(NNttR",
       "consists of 2 values"},
      {"a sparse tensor without a layout", global("torch._utils", "_rebuild_sparse_tensor") + "(N(NNNttR",
       "is None, not an object"},
      {"a part of a storage before it",
       "(" + text("storage") + global("torch", "FloatStorage") + text("0") + text("cpu") + "K\4(" + text("1") +
           integer(0xffffffff) + "K\1ttQ",
       "the offset of the view of a storage is -1"},
      {"a parameter of a str", global("torch._utils", "_rebuild_parameter") + "(" + text("x") + "\x88Nt" + "R",
       "is a str, not a tensor"},
      {"a tensor of too few arguments", global("torch._utils", "_rebuild_tensor_v2") + "(" + four + "K\0tR"s,
       "2 arguments"},
      {"a tensor made by another",
       global("torch._tensor", "_rebuild_from_type_v2") + "(" + global("torch", "device") + global("torch", "Tensor") +
           ")NtR",
       "does not construct a tensor"},
  };
}

void check_all(const std::vector<HostilePickle>& pickles) {
  for (const HostilePickle& each : pickles) {
    CAPTURE(each.what);
    const Error error = refusal(kProtocol2 + each.body + ".");
    const std::string seen = error.what();
    CAPTURE(seen);
    CHECK(contains(seen, each.says));
    CHECK(contains(seen, "x.pt: byte "));
    const bool is_expected_kind =
        error.kind() == ErrorKind::invalid_argument || error.kind() == ErrorKind::corrupt_data;
    CHECK(is_expected_kind);
  }
}

}  // namespace

// fault: 26
// feature: H-08
TEST_CASE("pickles that would run something are refused by name, and run nothing") {
  const TemporaryDirectory directory;
  const std::string trap = directory / "trap";
  const std::vector<HostilePickle> all = programs(trap);
  check_all(all);
  for (const HostilePickle& each : all) {
    CAPTURE(each.what);
    CHECK(contains(refusal(kProtocol2 + "](K\1" + each.body + "e.").what(), "x.pt: byte "));
  }
  CHECK(std::filesystem::is_empty(directory.path()));
  CHECK_ERROR(
      refusal(kProtocol2 + global("os", "system") + "."), ErrorKind::invalid_argument,
      "x.pt: byte 2 of the pickle: 'os.system' runs programs, so the file is refused: Lockstep executes nothing from a "
      "file, and no checkpoint needs it. Save a state dict: tensors, numbers, strings, lists and dicts");
}

// fault: 26
// feature: H-08
TEST_CASE("what Lockstep does not know is opaque, runs nothing, and leaves the rest to be read") {
  const TemporaryDirectory directory;
  for (const HostilePickle& each : strangers(directory / "trap")) {
    CAPTURE(each.what);
    const auto tree =
        read_pickle(kProtocol2 + "}(" + text("w") + tensor(storage("0", 4), 0, numbers({4}), numbers({1})) + text("x") +
                        each.body + text("n") + "K\7u.",
                    "x.pt");
    const PickleValue root = tree->root();
    REQUIRE(root.at("x").is(PickleKind::opaque));
    CHECK(root.at("x").class_name() == each.says);
    CHECK(value_text(root.at("x")) == "<" + each.says + ">");
    CHECK(root.at("w").tensor().shape == std::vector<std::int64_t>{4});
    CHECK(root.at("n").integer() == 7);
    CHECK_ERROR(error_of([&] { (void)root.at("x").integer(); }), ErrorKind::invalid_argument,
                "x.pt: the pickle has a value of '" + each.says + "', which Lockstep does not read",
                "an int is expected");
    // Damage is damage, whatever is beside it.
    CHECK(refusal(kProtocol2 + "](" + each.body + "e").kind() == ErrorKind::corrupt_data);
    CHECK(refusal(kProtocol2 + "](" + each.body + "e\xff.").kind() == ErrorKind::corrupt_data);
  }
  CHECK(std::filesystem::is_empty(directory.path()));
  const Error alone = refusal(kProtocol2 + global("argparse", "Namespace") + ")R.");
  CHECK_ERROR(alone, ErrorKind::invalid_argument, "the file holds only 'argparse.Namespace'", "executes nothing");
}

TEST_CASE("what an opaque value is made of can be seen") {
  const auto tree = read_pickle(kProtocol2 + "](" + global("a", "D") + "K\5\x85\x81(K\1K\2u}" + text("s") + "K\3sb" +
                                    global("a", "L") + ")\x81K\6a" + global("builtins", "getattr") + global("a", "B") +
                                    text("C") + "\x86R)\x81" + "e.",
                                "x.pt");
  const PickleValue first = tree->root().item(0);
  CHECK(first.arguments().item(0).integer() == 5);
  CHECK(first.items()->key(0).integer() == 1);
  CHECK(first.items()->value(0).integer() == 2);
  CHECK(first.state()->at("s").integer() == 3);
  CHECK(tree->root().item(1).items()->item(0).integer() == 6);
  CHECK_FALSE(tree->root().item(1).state());
  CHECK(tree->root().item(2).class_name() == "a.B.C");
  CHECK_FALSE(tree->root().item(2).items());
}

TEST_CASE("a value that contains itself ends there") {
  const auto text_of = [](const std::string& body) {
    const auto tree = read_pickle(kProtocol2 + body + ".", "x.pt");
    std::string seen;
    PickleValue at = tree->root();
    for (;;) {
      if (at.is(PickleKind::opaque)) return seen + std::string(at.class_name());
      seen += std::string(to_string(at.kind())) + ", ";
      at = at.is(PickleKind::dict) ? at.value(0) : at.is(PickleKind::object) ? *at.state() : at.item(0);
    }
  };
  CHECK(text_of("]q\0h\0a"s) == "a list, a value that contains itself");
  CHECK(text_of("}q\0K\1h\0s"s) == "a dict, a value that contains itself");
  CHECK(text_of("]q\0h\0\x85"s + "a") == "a list, a tuple, a value that contains itself");
  CHECK(text_of("]q\0]q\1h\0aa"s) == "a list, a list, a value that contains itself");
  CHECK(text_of(global("torch", "device") + ")Rq\0h\0b"s) == "an object, a value that contains itself");
  // As Python writes a tuple that is in its own list: the tuple is made again from the memo.
  CHECK(text_of("]q\0h\0\x85q\1a0h\1"s) == "a tuple, a list, a value that contains itself");
}

TEST_CASE("whole numbers of any size") {
  const auto digits = [](const std::string& bytes) {
    const std::string op = "\x8a" + std::string(1, static_cast<char>(bytes.size()));
    return value_text(read_pickle(kProtocol2 + op + bytes + ".", "x.pt")->root());
  };
  CHECK(digits("") == "0");
  CHECK(digits("\xff") == "-1");
  CHECK(digits(std::string(8, '\xff') + std::string(1, '\0')) == "18446744073709551615");
  CHECK(digits(std::string(8, '\0') + std::string(1, '\x80')) == "-2361183241434822606848");
  CHECK(digits(std::string(9, '\xff')) == "-1");
  CHECK(digits(std::string(12, '\0') + "\1") == "79228162514264337593543950336");
  CHECK(digits(std::string(255, '\0')) == "0");
  CHECK(digits(std::string(254, '\0') + "\x80").size() == 615);
}

TEST_CASE("texts that are not Unicode, and bytes that are written as text") {
  const auto tree = read_pickle(
      kProtocol2 + "](" + text("a\xed\xb3\xbf\xed\xa0\x80z") + "\x96" + little_endian(2, 8) + "\xff\1e.", "x.pt");
  CHECK(tree->root().item(0).text() == "a\xef\xbf\xbd\xef\xbf\xbdz");
  CHECK(value_text(tree->root().item(1)) == "ff01");
}

TEST_CASE("values as Python prints them") {
  const auto printed = [](const std::string& module, const std::string& name, const std::string& arguments) {
    return value_text(read_pickle(kProtocol2 + global(module, name) + arguments + "R.", "x.pt")->root());
  };
  CHECK(printed("pathlib", "PosixPath", "(" + text("/") + text("data") + text("x.pt") + "t") == "/data/x.pt");
  CHECK(printed("pathlib._local", "PosixPath", "(" + text("data/x.pt") + "t") == "data/x.pt");
  CHECK(printed("pathlib", "PosixPath", ")") == ".");
  CHECK(printed("pathlib", "PosixPath", "(K\1t") == "pathlib.PosixPath");
  CHECK(printed("pathlib", "WindowsPath", "(" + text("C:\\") + text("x") + "t") == "C:\\x");
  CHECK(printed("torch", "device", "(" + text("cuda") + "K\1t") == "cuda:1");
  CHECK(printed("torch", "device", "(K\1t") == "torch.device");
  CHECK(printed("__builtin__", "complex", "(G\x3f\xf8\0\0\0\0\0\0G\xbf\xf0\0\0\0\0\0\0t"s) == "(1.5-1j)");
  CHECK(printed("torch.serialization", "_get_layout", "(" + text("torch.sparse_csr") + "t") == "torch.sparse_csr");
  CHECK(read_pickle(kProtocol2 + global("collections", "Counter") + "}" + text("a") + "K\2s\x85R.", "x.pt")
            ->root()
            .at("a")
            .integer() == 2);
}

TEST_CASE("tensors as the first versions of PyTorch wrote them") {
  const std::string part = "(" + text("storage") + global("torch", "FloatStorage") + text("root") + text("cpu") +
                           "K\x0a(" + text("view") + "K\3K\4ttQ";
  const std::string content = "(" + part + "K\1" + numbers({2}) + numbers({1}) + "t";
  const auto tree = read_pickle(kProtocol2 + "](" + global("torch", "FloatTensor") + ")\x81" + content + "b" + part +
                                    global("torch.nn.parameter", "Parameter") +
                                    tensor(storage("0", 4), 0, numbers({4}), numbers({1})) + "\x88\x86\x81(\x89NNtb" +
                                    global("torch", "FloatTensor") + ")\x81" + "e.",
                                "x.pt");
  const PickleTensor built = tree->root().item(0).tensor();
  CHECK(built.storage.key == "root");
  CHECK(built.offset == 4);
  CHECK(built.shape == std::vector<std::int64_t>{2});
  const PickleTensor view = tree->root().item(1).tensor();
  CHECK(view.offset == 3);
  CHECK(view.shape == std::vector<std::int64_t>{4});
  const PickleTensor parameter = tree->root().item(2).tensor();
  CHECK(parameter.is_parameter);
  CHECK_FALSE(parameter.requires_grad);
  CHECK(tree->root().item(3).class_name() == "torch.FloatTensor");
}

// fault: 26
TEST_CASE("what is no pickle, and bombs, are refused") { check_all(malformed()); }

TEST_CASE("impossible tensors are refused") { check_all(tensors()); }

TEST_CASE("protocols, and what follows a pickle") {
  CHECK_ERROR(refusal(""), ErrorKind::corrupt_data, "truncated");
  CHECK(read_pickle("N.", "x.pt")->root().is(PickleKind::none));  // protocol 1 does not say so
  CHECK_ERROR(refusal("\x80\1N."), ErrorKind::invalid_argument, "protocol 1; only 2 to 5 are supported");
  CHECK_ERROR(refusal("\x80\6N."), ErrorKind::invalid_argument, "protocol 6");
  CHECK_ERROR(refusal(kProtocol2 + "N.N."), ErrorKind::corrupt_data, "2 more bytes follow its end");
}

// fault: 25
TEST_CASE("every truncation of a pickle is refused") {
  const std::string right = kProtocol2 + "}(" + text("a") +
                            tensor(storage("0", 4), 0, numbers({2, 2}), numbers({2, 1})) + text("b") +
                            "](M\1\2\x8a\2\1\2\x88\x89Neu.";
  CHECK(read_pickle(right, "x.pt")->root().size() == 2);
  for (std::size_t length = 0; length < right.size(); ++length) {
    CAPTURE(length);
    CHECK(refusal(right.substr(0, length)).kind() == ErrorKind::corrupt_data);
  }
}

TEST_CASE("values are what the pickle says") {
  const auto tree = read_pickle(kProtocol2 + "}(" + text("n") + "N" + text("i") + integer(0xfffffffe) + text("f") +
                                    "G" + "\x3f\xf8\0\0\0\0\0\0"s + text("t") + "K\1K\2\x86" + text("d") +
                                    global("torch", "device") + text("cuda") + "K\1\x86Ru.",
                                "x.pt");
  const PickleValue root = tree->root();
  CHECK(root.size() == 5);
  CHECK(root.at("n").is(PickleKind::none));
  CHECK(root.at("i").integer() == -2);
  CHECK(root.at("f").number() == 1.5);
  CHECK(root.at("t").item(1).integer() == 2);
  CHECK(root.at("d").class_name() == "torch.device");
  CHECK(root.at("d").arguments().item(0).text() == "cuda");
  CHECK_FALSE(root.at("d").state());
  CHECK_ERROR(error_of([&] { (void)root.at("i").text(); }), ErrorKind::corrupt_data,
              "x.pt: the pickle has an int where a str is expected");
  CHECK_ERROR(error_of([&] { (void)root.at("x"); }), ErrorKind::corrupt_data, "x.pt: a dict lacks 'x'");
  CHECK_ERROR(error_of([&] { (void)root.at("t").item(2); }), ErrorKind::corrupt_data, "2 items");
}

TEST_CASE("what is shared stays one value") {
  const auto tree = read_pickle(kProtocol2 + "(Nq\0"s + times(20, "h\0h\0\x86q\0"s) + "t.", "x.pt");
  CHECK(tree->size() == 22);
}

// fault: 26
TEST_CASE("however many values a pickle has, they take little more memory than its bytes") {
  constexpr std::size_t kBytes = std::size_t{kIsSanitized ? 2 : 32} << 20;
  constexpr rlim_t kMemory = rlim_t{640} << 20;
  for (const std::string& part : {"]"s, "}"s, "N"s, "("s, "N\x85"s, "K\1\x85"s, "]Na"s, "}NNs"s, "N\x94"s, ")\x85"s,
                                  "]h\0a"s, "NNNNNNNNNNNNNNN"s, "(NNNNNNNt"s, "](NNNNNNNNNNNNe"s}) {
    CAPTURE(part);
    std::string pickle = kProtocol2 + "Nq\0"s;
    while (pickle.size() < kBytes) pickle += part;
    const auto is_refused = [&] {
      const rlimit limit{kMemory, kMemory};
      if (!kIsSanitized && ::setrlimit(RLIMIT_DATA, &limit) != 0) return false;
      return refusal(pickle).kind() != ErrorKind::internal;
    };
    CHECK(exit_code_of_child(is_refused) == 0);
  }
}

TEST_CASE("a list of a million values is read") {
  std::string pickle = kProtocol2 + "]("s;
  for (std::uint32_t i = 0; i < 1'000'000; ++i) pickle += integer(i);
  const auto tree = read_pickle(pickle + "e.", "x.pt");
  REQUIRE(tree->root().size() == 1'000'000);
  CHECK(tree->root().item(999'999).integer() == 999'999);
}

}  // namespace pickle_test
