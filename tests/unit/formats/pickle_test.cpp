#include <doctest/doctest.h>
#include <sys/resource.h>

#include <filesystem>

#include "lockstep/formats/pickle_reader.h"
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
      {"eval", global("builtins", "eval") + code + "\x85R", "'builtins.eval'"},
      {"exec", global("builtins", "exec") + code + "\x85R", "'builtins.exec'"},
      {"Python 2's eval", global("__builtin__", "eval") + code + "\x85R", "'__builtin__.eval'"},
      {"getattr", global("builtins", "getattr") + "0", "'builtins.getattr'"},
      {"__import__", global("builtins", "__import__") + text("os") + "\x85R", "'builtins.__import__'"},
      {"compile", global("builtins", "compile"), "'builtins.compile'"},
      {"open", global("io", "open") + text(trap) + "\x85R", "'io.open'"},
      {"subprocess", global("subprocess", "Popen") + command + "\x85R", "'subprocess.Popen'"},
      {"shutil", global("shutil", "rmtree") + text("/") + "\x85R", "'shutil.rmtree'"},
      {"pickle in pickle", global("_pickle", "loads"), "'_pickle.loads'"},
      {"torch.load", global("torch.serialization", "load"), "'torch.serialization.load'"},
      {"bytes of torch", global("torch.storage", "_load_from_bytes"), "'torch.storage._load_from_bytes'"},
      {"torch.hub", global("torch.hub", "load"), "'torch.hub.load'"},
      {"copyreg", global("copyreg", "_reconstructor"), "'copyreg._reconstructor'"},
      {"functools", global("functools", "partial"), "'functools.partial'"},
      {"operator", global("operator", "methodcaller"), "'operator.methodcaller'"},
      {"numpy", global("numpy.core.multiarray", "_reconstruct"), "'numpy.core.multiarray._reconstruct'"},
      {"a name with dots", global("torch", "serialization.os.system"), "'torch.serialization.os.system'"},
      {"an empty name", global("torch", ""), "'torch.'"},
      {"an empty module", global("", "torch.Size"), "'.torch.Size'"},
      {"a name on the stack", text("os") + text("system") + "\x93", "'os.system'"},
      {"STACK_GLOBAL of numbers", "K\1K\2\x93", "a name is an int"},
      {"INST", "(" + command + "ios\nsystem\n", "opcode INST"},
      {"OBJ", "(" + global("torch", "device") + command + "o", "opcode OBJ"},
      {"EXT1", "\x82\1", "opcode EXT1"},
      {"EXT2", "\x83\1\1", "opcode EXT2"},
      {"EXT4", "\x84\1\1\1\1", "opcode EXT4"},
      {"NEWOBJ_EX", ")}\x92", "opcode NEWOBJ_EX"},
      {"PERSID", "Pstorage\n", "opcode PERSID"},
      {"BUILD on a str", text("x") + "}b", "a str is given a state"},
      {"BUILD on a list", "]}b", "a list is given a state"},
      {"REDUCE of a str", text("os.system") + command + "\x85R", "what is called is a str"},
      {"REDUCE of a type", global("torch", "FloatStorage") + "K\5\x85R", "as a name only"},
      {"REDUCE of a constant", global("torch", "float32") + ")R", "as a name only, and executes nothing"},
      {"REDUCE without tuple", global("torch", "Size") + "]R", "is a list, not a tuple"},
      {"NEWOBJ of a function", global("torch._utils", "_rebuild_tensor_v2") + ")\x81", "reads no such object"},
      {"NEWOBJ of a dict", global("collections", "OrderedDict") + ")\x81", "reads no such object"},
      {"encode to another code", global("_codecs", "encode") + text("x") + text("rot13") + "\x86R", "Latin-1"},
  };
}

// What is no pickle.
std::vector<HostilePickle> malformed() {
  return {
      {"nothing", "", "at its end there are 0 values"},
      {"two values", "NN", "at its end there are 2 values"},
      {"an open mark", "N(", "at its end there are 2 values"},
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
      {"a huge str", "X\xff\xff\xff\xff", "cut off"},
      {"an endless str", "\x8d" + little_endian(~0ULL, 8), "cut off"},
      {"endless bytes", "\x8e" + little_endian(1ULL << 62, 8), "cut off"},
      {"a huge int", "\x8a\x09"s + std::string(9, '\1'), "larger than the 8"},
      {"LONG4", "\x8b\4\0\0\0\1\0\0\0"s, "opcode LONG4"},
      {"a wrong frame", "\x95" + little_endian(1ULL << 40, 8), "a frame has 1099511627776 bytes"},
      {"no UTF-8", text("\xff\xfe"), "not UTF-8"},
      {"a surrogate", text("\xed\xa0\x80"), "not UTF-8"},
      {"an overlong character", text("\xc0\x80"), "not UTF-8"},
      {"an endless name", "c" + std::string(5000, 'x'), "a name is longer"},
      {"a protocol again", "\x80\2N", "a protocol comes again"},
      {"a list in itself", "]q\0h\0a"s, "contains itself"},
      {"a dict in itself", "}q\0K\1h\0s"s, "contains itself"},
      {"a tuple in its list", "]q\0h\0\x85"s + "a", "contains itself"},
      {"two lists in each other", "]q\0]q\1h\0aa"s, "contains itself"},
      {"a state that is its object", global("torch", "device") + ")Rq\0h\0b"s, "contains itself"},
      {"a deep list", times(500, "]") + times(499, "a"), "deeper than 400"},
      {"a deep tuple", ")" + times(100'000, "\x85"), "deeper than 400"},
      {"doubled again and again", "]" + times(64, "2"), "opcode DUP"},
      {"a billion laughs", "(Nq\0"s + times(60, "h\0h\0\x86q\0"s) + "t", "shared so often"},
      {"copies of one list",
       "(](" + times(3000, "N") + "eq\0"s + global("builtins", "set") + "q\1" + times(3000, "h\1h\0\x85R"s) + "t",
       "copied again and again"},
  };
}

// Tensors that cannot be.
std::vector<HostilePickle> tensors() {
  const std::string four = storage("0", 4);
  const std::string many = "(" + times(65, "K\1") + "t";
  return {
      {"a negative dimension", tensor(four, 0, numbers({0xffffffff}), numbers({1})), "dimension of -1"},
      {"a negative stride", tensor(four, 0, numbers({2}), numbers({0xffffffff})), "dimension of -1"},
      {"a negative offset", tensor(four, 0xffffffff, numbers({2}), numbers({1})), "begins at element -1"},
      {"more strides than dimensions", tensor(four, 0, numbers({2}), numbers({1, 1})), "more dimensions than strides"},
      {"65 dimensions", tensor(four, 0, many, many), "at most 64"},
      {"a shape of texts", tensor(four, 0, "(" + text("2") + "t", numbers({1})), "is a str, not an int"},
      {"a storage of texts", tensor(text("0"), 0, numbers({2}), numbers({1})), "is a str, not a storage"},
      {"a negative storage", storage("0", 0xffffffff), "has -1 elements"},
      {"no storage", "(" + text("module") + "NNNNtQ", "not that of a storage"},
      {"a short id", text("storage") + "\x85Q", "not that of a storage"},
      {"an id that is a str", text("0") + "Q", "is a str, not a tuple"},
      {"no type of storages", "(" + text("storage") + global("torch", "float32") + text("0") + text("cpu") + "K\1tQ",
       "no type of storages"},
      {"a complex storage", global("torch", "ComplexFloatStorage"), "view_as_real"},
      {"a quantised storage", global("torch", "QInt8Storage"), "dequantize()"},
      {"a parameter of a str", global("torch._utils", "_rebuild_parameter") + "(" + text("x") + "\x88Nt" + "R",
       "is a str, not a tensor"},
      {"a tensor of too few arguments", global("torch._utils", "_rebuild_tensor_v2") + "(" + four + "K\0tR"s,
       "2 arguments"},
      {"a tensor made by another",
       global("torch._tensor", "_rebuild_from_type_v2") + "(" + global("torch", "device") + global("torch", "Tensor") +
           ")NtR",
       "makes no tensor"},
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
  CHECK_ERROR(refusal(kProtocol2 + global("os", "system") + "."), ErrorKind::invalid_argument,
              "x.pt: byte 2 of the pickle: 'os.system' is not among the names that Lockstep reads: it executes nothing "
              "from a file. Save a state dict: tensors, numbers, texts, lists and dicts");
}

// fault: 26
TEST_CASE("what is no pickle, cycles and bombs are refused") { check_all(malformed()); }

TEST_CASE("impossible tensors are refused") { check_all(tensors()); }

TEST_CASE("protocols, and what follows a pickle") {
  CHECK_ERROR(refusal(""), ErrorKind::corrupt_data, "cut off");
  CHECK_ERROR(refusal("N."), ErrorKind::corrupt_data, "does not begin with a protocol");
  CHECK_ERROR(refusal("\x80\1N."), ErrorKind::invalid_argument, "protocol 1; 2 to 5 are read");
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
