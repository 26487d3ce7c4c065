"""Shows every rule code that breaks it and code that does not."""

import contextlib
import io
import os
import shutil
import tempfile
import types
import unittest

import cpp_text
import proof_table
import public_names
import text_rules
import tidy
import tree_rules
import word_rules
from tree_rules import Tree


def offences(rule, path, text):
    return [line for line, _ in rule(path, text)]


def tree_offences(rule, files, *arguments):
    """(path, line) of what the rule finds in a made-up project."""
    folders = 'set(folders base net)\nif(LOCKSTEP_TORCH)\n  list(APPEND folders group)\nendif()\n'
    tree = Tree.of({"lockstep/CMakeLists.txt": folders, **files})
    return [(path, line) for path, line, _ in rule(tree, *arguments)]


class CppText(unittest.TestCase):
    def test_comments_and_literals_are_blanked(self):
        text = 'a("x // {", \'{\'); // {\nb(R"q(\n{ )")q"); /* {\n */ c(1\'000\'000);'
        code = cpp_text.code_only(text)
        self.assertNotIn("{", code)
        self.assertEqual(code.count("\n"), text.count("\n"))
        self.assertIn("c(1'000'000);", code)

    def test_functions_are_found_at_any_depth_and_only_functions(self):
        text = "\n".join([
            "namespace a {",  # 1
            "enum class E { x, y };",
            "constexpr int kTable[] = {1,",
            "                          2};",
            "template <class T>",
            "struct alignas(64) S : Base<T> {",  # 6
            "  S(int v) : v_{v}, w_(v) {",
            "    auto f = [&] { return 1; };",
            "  }",
            "  int get() const { return v_; }",  # 10
            "  int v_ = {}, w_;",
            "};",
            "#define M(x) do { x; \\",
            "  } while (0)",
            "void g(std::vector<int> v = {}) {",  # 15
            "  if (v.empty()) {",
            "  }",
            "}",
            "}  // namespace a",
            'TEST_CASE("t") {',  # 20
            "}",
        ])
        lengths = [(first, last) for first, last in cpp_text.functions(text) if last > first]
        self.assertEqual(lengths, [(7, 9), (15, 18), (20, 21)])


class TextRules(unittest.TestCase):
    def test_length(self):
        self.assertEqual(offences(text_rules.length, "a.cpp", "x" * 120 + "\n" + "y" * 121 + "\n"), [2])
        for path, most in (("a.cpp", 600), ("lockstep/a/b.cpp", 400), ("lockstep/a/b.h", 150)):
            self.assertEqual(offences(text_rules.length, path, "\n" * most), [])
            self.assertEqual(offences(text_rules.length, path, "\n" * (most + 1)), [most + 1])

    def test_function_length(self):
        def cpp(lines):
            return "namespace a {\nvoid f() {\n" + "  x();\n" * (lines - 2) + "}\n}\n"

        def python(lines):
            return "def f():\n" + "    x()\n" * (lines - 1)

        for path, make, first in (("a.cpp", cpp, 2), ("a.h", cpp, 2), ("a.py", python, 1)):
            self.assertEqual(offences(text_rules.function_length, path, make(70)), [])
            self.assertEqual(offences(text_rules.function_length, path, make(71)), [first])
        self.assertEqual(offences(text_rules.function_length, "lockstep/a.cpp", cpp(60)), [])
        self.assertEqual(offences(text_rules.function_length, "lockstep/a.cpp", cpp(61)), [2])

    def test_banned_words(self):
        bad = ["// TODO: later", "FIXME", "XXX", "an unimplemented part", "Not yet implemented", "a stub", "issue #7"]
        for text in bad:
            self.assertEqual(offences(text_rules.banned_words, "a.cpp", "\n" + text), [2], text)
        for text in ["mkstemp(\"/tmp/XXXXXX\")", "stubborn", "the todo list"]:
            self.assertEqual(offences(text_rules.banned_words, "a.cpp", text), [], text)

    def test_forbidden_calls(self):
        bad = ["torch::load(x, f);", "std::system(c);", " system (c);", "::dlopen(p, 0);", "torch::jit::load(f);",
               "pickle_load(d);", "popen(c, m);"]
        for text in bad:
            self.assertEqual(offences(text_rules.forbidden_calls, "a.cpp", text), [1], text)
        for text in ["throw system_error(w, errno);", "// system(x)", 'f("torch::load(x)");', "reader.system(1);"]:
            self.assertEqual(offences(text_rules.forbidden_calls, "a.cpp", text), [], text)
        self.assertEqual(offences(text_rules.forbidden_calls, "tests/a.cpp", bad[1]), [])

    def test_opens_for_writing(self):
        bad = ["::open(p.c_str(), O_WRONLY | O_CLOEXEC);", "::openat(d, n,\n  O_CREAT | O_EXCL, 0600);",
               "creat(p, 0600);", "PrivateFd::open([&] { return ::open(p, O_RDWR); });", 'fopen(p, "w");',
               "::mkstemp(name);", "std::ofstream out(p);", "std::fstream f(p);", "std::filesystem::copy_file(a, b);"]
        for text in bad:
            self.assertEqual(offences(text_rules.opens_for_writing, "lockstep/net/a.cpp", text), [1], text)
            self.assertEqual(offences(text_rules.opens_for_writing, "tools/a.h", f"\nint a;\n{text}"), [3], text)
            for path in ("tests/a.cpp", "examples/a.cpp", "lockstep/base/open_for_writing.cpp"):
                self.assertEqual(offences(text_rules.opens_for_writing, path, text), [], text)
        for text in ["::open(p, O_RDONLY | O_CLOEXEC);", '::open("/dev/null", O_RDWR);', "std::ifstream in(p);",
                     "// ::open(p, O_WRONLY)", "f.open(p); g(O_WRONLY);", "zip_fopen_index(a, 0);", "::mkdtemp(name);"]:
            self.assertEqual(offences(text_rules.opens_for_writing, "lockstep/net/a.cpp", text), [], text)

    def test_file_name(self):
        for path in ["lockstep/net/TcpSocket.h", "lockstep/net/tcp-socket.cpp", "lockstep/net/tcp.hpp"]:
            self.assertEqual(offences(text_rules.file_name, path, ""), [1], path)
        for path in ["lockstep/net/tcp_socket.h", "cmake/LockstepBuild.cmake"]:
            self.assertEqual(offences(text_rules.file_name, path, ""), [], path)

    def test_header_shape(self):
        good = "// A thing.\n#pragma once\n#include <vector>\n"
        self.assertEqual(offences(text_rules.header_shape, "lockstep/net/a.h", good), [])
        self.assertEqual(offences(text_rules.header_shape, "lockstep/net/a.h", "#pragma once\n"), [1])
        self.assertEqual(offences(text_rules.header_shape, "lockstep/net/a.h", "// A thing.\n"), [1])
        formats = good + '#include "lockstep/base/format.h"\n#include <fmt/format.h>\n'
        self.assertEqual(offences(text_rules.header_shape, "lockstep/net/a.h", formats), [4, 5])
        self.assertEqual(offences(text_rules.header_shape, "lockstep/net/a.cpp", formats), [])
        devices = good + "#include <cuda_runtime_api.h>\n#include <c10/cuda/CUDAStream.h>\n#include <nccl.h>\n"
        self.assertEqual(offences(text_rules.header_shape, "lockstep/net/a.h", devices), [4, 5, 6])

    def test_own_header_first(self):
        own, other = '#include "lockstep/net/a.h"\n', "#include <vector>\n"
        self.assertEqual(offences(text_rules.own_header_first, "lockstep/net/a.cpp", own + other), [])
        self.assertEqual(offences(text_rules.own_header_first, "lockstep/net/a.cpp", other + own), [2])


class TreeRules(unittest.TestCase):
    def test_process_wide(self):
        page = {"docs/EMBEDDING.md": "| out | [a](../lockstep/base/a.cpp) | [b](../lockstep/base/b.h) | [c](DDP.md)"}
        named = {**page, "lockstep/base/a.cpp": "std::setvbuf(stdout, b, _IOLBF, 0);", "lockstep/base/b.h": "prctl(1);"}
        self.assertEqual(tree_offences(tree_rules.process_wide, named), [])
        for text in ["::sigaction(SIGINT, &a, nullptr);", "std::set_terminate(f);", "::signal(SIGPIPE, SIG_IGN);",
                     "c10::SetAllocator(t, a);", "TORCH_LIBRARY_IMPL(aten, CPU, m) {}", "::setenv(a, b, 1);"]:
            files = {**named, "lockstep/net/c.cpp": f"int a;\n{text}", "tools/d.cpp": text, "tests/e.cpp": text}
            self.assertEqual(tree_offences(tree_rules.process_wide, files), [("lockstep/net/c.cpp", 2)], text)
        for text in ["agent.signal(SIGINT);", "struct sigaction action {};", "// ::sigaction(a)", "int signal() const;",
                     "process->setenv(a);", "my_umask(0);"]:
            self.assertEqual(tree_offences(tree_rules.process_wide, {**named, "python/src/c.cpp": text}), [], text)

    def test_the_folders_are_read_from_cmake(self):
        tree = Tree.of({"lockstep/CMakeLists.txt": "set(folders base net)\n  list(APPEND folders group ddp)\n"})
        self.assertEqual(tree.folders, ["base", "net", "group", "ddp"])
        self.assertEqual(tree.torch_free, {"base", "net"})

    def test_include_direction(self):
        files = {
            "lockstep/base/a.h": '#include "lockstep/net/b.h"\n',  # upwards
            "lockstep/net/b.h": '\n#include "lockstep/base/a.h"\n#include "lockstep/net/c.h"\n',  # c.h is not there
            "lockstep/other/d.h": "",  # not a known folder
            "lockstep/group/e.cpp": '#include "lockstep/lockstep.h"\n',
            "lockstep/lockstep.h": '#include "lockstep/net/b.h"\n',
            "lockstep/group/f.h": "",
            "lockstep/group/h.h": "",
            "lockstep/group/CMakeLists.txt": "lockstep_library(group_core\n  SOURCES i.cpp h.cpp\n  LINKS f.cpp)\n",
            "tools/g.cpp": '#include "lockstep/group/f.h"\n#include "lockstep/group/h.h"\n',
        }
        expected = [("lockstep/base/a.h", 1), ("lockstep/net/b.h", 3), ("lockstep/other/d.h", 1),
                    ("lockstep/group/e.cpp", 1), ("tools/g.cpp", 1)]
        self.assertCountEqual(tree_offences(tree_rules.include_direction, files), expected)

    def test_wings(self):
        folders = "set(folders base base/observe comm/net job/launch)\n  list(APPEND folders train/ddp)\n"
        files = {
            "lockstep/CMakeLists.txt": folders,
            "lockstep/base/a.h": '#include "lockstep/base/observe/b.h"\n',  # upwards
            "lockstep/base/observe/b.h": '#include "lockstep/base/a.h"\n',
            "lockstep/comm/net/c.h": '#include "lockstep/base/observe/b.h"\n',
            "lockstep/job/launch/d.h": '#include "lockstep/comm/net/c.h"\n',
            "lockstep/train/ddp/checks/e.h": '#include "lockstep/comm/net/c.h"\n#include "lockstep/job/launch/d.h"\n',
            "lockstep/comm/f.h": "",  # in no folder
        }
        expected = [("lockstep/base/a.h", 1), ("lockstep/train/ddp/checks/e.h", 2), ("lockstep/comm/f.h", 1)]
        found = [(path, line) for path, line, _ in tree_rules.include_direction(Tree.of(files))]
        self.assertCountEqual(found, expected)

    def test_rooms(self):
        files = {
            "lockstep/net/CMakeLists.txt": "set(rooms low high)\n",
            "lockstep/net/core.h": '#include "lockstep/net/low/a.h"\n',
            "lockstep/net/low/a.h": '#include "lockstep/base/x.h"\n#include "lockstep/net/low/b.h"\n',
            "lockstep/net/low/b.h": '#include "lockstep/net/high/c.h"\n',  # upwards
            "lockstep/net/high/c.h": '#include "lockstep/net/low/a.h"\n#include "lockstep/net/core.h"\n',
            "lockstep/net/other/d.h": "",  # not a known room
            "lockstep/base/any/e.h": "",  # a folder without rooms
        }
        expected = [("lockstep/net/low/b.h", 1), ("lockstep/net/high/c.h", 2), ("lockstep/net/other/d.h", 1)]
        self.assertCountEqual(tree_offences(tree_rules.rooms, files), expected)

    def test_torch_wall(self):
        files = {
            "lockstep/net/a.h": "#include <ATen/core/Tensor.h>\n",
            "tools/b.cpp": '\n#include "torch/torch.h"\n',
            "lockstep/group/c.h": "#include <torch/types.h>\n#include <fmt/format.h>\n",
            "lockstep/net/d.cpp": "#include <spdlog/spdlog.h>\n// #include <torch/torch.h>\n",
        }
        expected = [("lockstep/net/a.h", 1), ("tools/b.cpp", 2), ("lockstep/group/c.h", 2)]
        self.assertCountEqual(tree_offences(tree_rules.torch_wall, files), expected)

    def test_variables(self):
        rows = [("A", 'text("1")', ""), ("B", 'choice("on, off")', "on"), ("C", "number(1, 64)", "1")]
        table = "".join(f'{{"LOCKSTEP_{name}", {values}, "{fallback}"}},\n' for name, values, fallback in rows)
        page = "| `LOCKSTEP_A` | 1 | | x |\n| `LOCKSTEP_C` | 1 to 64 | 2 | x |\n| `LOCKSTEP_D` | 1 | | x |\n"
        files = {
            tree_rules.VARIABLE_TABLE: table + 'kOfOthers = " HOME SLURM_ID " " TERM ";',
            tree_rules.VARIABLE_PAGE: page + "| `HOME`, `SLURM_*`, `TMPDIR` | x |\n",
            "lockstep/net/a.cpp": '"LOCKSTEP_A"\n"LOCKSTEP_B=" + x\n"LOCKSTEP_E"\nstd::getenv("HOME")\n',
        }
        expected = [("lockstep/net/a.cpp", 3), ("lockstep/net/a.cpp", 4)]  # E is unknown; getenv
        expected += [(tree_rules.VARIABLE_TABLE, 1)]  # nothing reads C
        # B and D are on one side only, C has another default, TERM is not explained, TMPDIR is not read
        expected += 5 * [(tree_rules.VARIABLE_PAGE, 1)]
        self.assertCountEqual(tree_offences(tree_rules.variables, files), expected)

    def test_faults(self):
        files = {
            proof_table.FAULTS.rows: "1 | a rank dies | it is named\n2 | a disk is full | it is said\n",
            "tests/a_test.cpp": '// fault: 1\nTEST_CASE("dead, \\"named\\"") {\n}\n// fault: 9\nTEST_CASE("x") {',
            "python/tests/b_test.py": "    # fault: 1, 2\n    @skip\n    def test_it_all(self):\n# fault: 2\n",
        }
        page = proof_table.FAULTS.page
        files[page] = proof_table.make_page(proof_table.FAULTS, files)
        self.assertIn('it all<br>[a_test.cpp](../tests/a_test.cpp): dead, \\"named\\" |', files[page])
        self.assertIn("| 2 | a disk is full | it is said | [b_test.py](../python/tests/b_test.py): it all |",
                      files[page])
        expected = [("tests/a_test.cpp", 4), ("python/tests/b_test.py", 4)]
        self.assertCountEqual(tree_offences(proof_table.check_tables, files), expected)
        files[proof_table.FAULTS.rows] += "3 | new | known\n"
        self.assertIn((page, 1), tree_offences(proof_table.check_tables, files))

    def test_features(self):
        page = proof_table.FEATURES.page
        files = {
            proof_table.FEATURES.rows: "# A. Groups\nA-01 | begin\nA-02 | end | open: a test of threads\n"
                                       "A-03 | fly | declined: no wings\n# B. Devices\nB-01 | NCCL | GPU\n"
                                       "B-02 | sharing | GPU open: a test\nB-03 | none\nB-04 | wrong | open\n",
            "tests/a_test.cpp": '// feature: A-01, B-01\n// fault: 1\nTEST_CASE("x" * needs("gpu")) {\n',
            "examples/a/CMakeLists.txt": "    # feature: A-02, A-03, B-04\n  add_test(NAME example_a_${n} COMMAND a)\n",
        }
        files[page] = proof_table.make_page(proof_table.FEATURES, files)
        self.assertIn("2 of 7 rows are proven, 1 more on a machine with a GPU, 1 are declined.\n\n## A. Groups\n",
                      files[page])
        x = "[a_test.cpp](../tests/a_test.cpp): x"
        example = "[a/CMakeLists.txt](../examples/a/CMakeLists.txt): example_a"
        for row in (f"| A-01 | begin | {x} |", f"| A-02 | end | not yet: a test of threads<br>{example} |",
                    "| A-03 | fly | declined: no wings |", f"| B-01 | NCCL | GPU<br>{x} |",
                    "| B-02 | sharing | GPU<br>not yet: a test |", "| B-03 | none | none so far |"):
            self.assertIn(row + "\n", files[page])
        found = list(proof_table.check_tables(types.SimpleNamespace(files=files)))
        self.assertEqual({message.split()[0] for _, _, message in found}, {"A-03", "B-03", "B-04:"})

    def test_public_names(self):
        text = ("#pragma once\nnamespace lockstep {\nclass Later;\nenum class Kind { a, b };\nusing Name = int;\n"
                "inline constexpr int kMost = 3;\ntemplate <class T>\n  requires(sizeof(T) > 1)\n"
                "struct Box : Base<T> {\n  struct Inner {};\n  void act() const { go(); }\n};\n"
                "std::vector<int> all_of(const Box<int>& box = {});\n"
                "template <class T>\nconcept Small = requires(T t) { t.size(); };\nusing internal::Shown;\n"
                "bool operator==(Kind a, Kind b);\nnamespace internal {\nstruct Hidden {};\n}  // namespace internal\n"
                "template <>\nstruct Box<int> {};\n}  // namespace lockstep\nnamespace other {\nint foreign;\n}\n")
        names = {"Kind", "Name", "kMost", "Box", "all_of", "Small", "Shown"}
        self.assertEqual(public_names.names_in(text), names)
        files = {"lockstep/lockstep.h": '#include "lockstep/base/a.h"\n', "lockstep/base/a.h": text,
                 "lockstep/base/b.h": "namespace lockstep {\nstruct Unseen {};\n}\n",
                 public_names.LIST: "Kind Name Gone"}
        found = [message.split(" ")[0] for _, _, message in
                 public_names.check_public_names(types.SimpleNamespace(files=files))]
        self.assertEqual(found, ["Box", "Shown", "Small", "all_of", "kMost", "no"])

    def test_dead_files(self):
        files = {
            "lockstep/net/a.cpp": '#include "lockstep/net/a.h"\n', "lockstep/net/a.h": "", "lockstep/net/b.cpp": "",
            "lockstep/net/b.h": "", "bench/mpi.cpp": "", "bench/old.cpp": "", "bench/CMakeLists.txt": "(mpi mpi.cpp)",
        }
        expected = [("lockstep/net/b.cpp", 1), ("lockstep/net/b.h", 1), ("bench/old.cpp", 1)]
        self.assertCountEqual(tree_offences(tree_rules.dead_files, files, {"lockstep/net/a.cpp"}), expected)

    def test_document_links(self):
        files = {
            "README.md": "[a](docs/a.md) [b](docs/b.md) [c](docs/a.md#the-parts) [d](docs/a.md#no) [e](https://x.y)\n",
            "docs/a.md": "# A\n## The *parts*\n[up](../README.md) [self](#a)\n```\n# none\n```\n",
            "lockstep/net/x.h": "\n// see docs/gone.md\n",
        }
        found = tree_offences(tree_rules.document_links, files)
        self.assertEqual(set(found), {("README.md", 1), ("lockstep/net/x.h", 2)})
        self.assertEqual(len(found), 4)  # docs/b.md is missing as a mention and as a link

    def test_examples_are_tests(self):
        main = "int main() {}\n"
        files = {"examples/run.cpp": main, "examples/gone.cpp": main, "examples/models/part.cpp": "int f();\n"}
        commands = [["/build/bin/lockstep", "run", "/build/bin/run"]]
        found = tree_offences(tree_rules.examples_are_tests, files, commands)
        self.assertEqual(found, [("examples/gone.cpp", 1)])


class Tools(unittest.TestCase):
    def setUp(self):
        self.root = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.root)

    def write(self, path, text):
        os.makedirs(os.path.dirname(os.path.join(self.root, path)), exist_ok=True)
        with open(os.path.join(self.root, path), "w", encoding="utf-8") as file:
            file.write(text)
        return {path: text}

    def test_lone_headers(self):
        files = self.write("lockstep/net/good.h", "#pragma once\n#include <string>\nstd::string f();\n")
        files |= self.write("lockstep/net/bad.h", "#pragma once\nstd::string g();\n")
        files |= self.write("lockstep/net/bad.cpp", '#include <string>\n#include "lockstep/net/bad.h"\n')
        files |= self.write("lockstep/net/built.h", "#pragma once\nstd::string h();\n")
        files |= self.write("lockstep/net/built.cpp", '#include "lockstep/net/built.h"\n')  # the build's affair
        found = tree_offences(tree_rules.lone_headers, files, self.root, os.environ.get("CXX", "g++"))
        self.assertEqual(found, [("lockstep/net/bad.h", 1)])

    def test_header_costs(self):
        files = self.write("lockstep/all.h", '#include "lockstep/net/dear.h"\n#include "lockstep/net/cheap.h"\n')
        files |= self.write("lockstep/net/dear.h", "#pragma once\nint a();\nint b();\nint c();\n")
        files |= self.write("lockstep/net/cheap.h", "#pragma once\nint d();\n")
        costs = (self.root, os.environ.get("CXX", "g++"), [], "lockstep/all.h", {"": 9})
        self.assertEqual(tree_offences(tree_rules.header_costs, files, *costs), [])
        files |= self.write("lockstep/net/dear.h", "#pragma once\nint a();\nint b();\nint c();\n" + "int e();\n" * 9)
        found = tree_offences(tree_rules.header_costs, files, *costs)
        self.assertEqual(found, [("lockstep/all.h", 1), ("lockstep/net/dear.h", 1)])

    def test_dear_includes(self):
        files = {"lockstep/net/a.h": "#include <fmt/format.h>\n", "lockstep/net/a.cpp": "#include <fmt/format.h>\n"}
        self.assertEqual(tree_offences(tree_rules.dear_includes, files), [("lockstep/net/a.h", 1)])

    def test_plain_words(self):
        files = {
            "lockstep/lockstep.h": '// Everything.\n#include "lockstep/net/a.h"\n',
            "lockstep/net/a.h": "// Made anew.\nint whoever;\n",
            "lockstep/net/inside.h": "// Made anew.\n",
            "lockstep/net/a.cpp": '// anew\nauto a = "in its own thread";\nauto b = "a thread of its own.";\n',
            "docs/A.md": "A thread\nof the rank's own.\nOf the rank's own process.\n",
            "docs/FAULTS.md": "anew\n",
        }
        found = tree_offences(word_rules.plain_words, files)
        self.assertEqual(sorted(found), [("docs/A.md", 2), ("lockstep/net/a.cpp", 3), ("lockstep/net/a.h", 1)])

    def test_format(self):
        clang_format = os.path.join(tidy.ROOT, ".venv/bin/clang-format")
        if not shutil.which(clang_format):
            self.skipTest("clang-format is missing")
        shutil.copy(os.path.join(tidy.ROOT, ".clang-format"), self.root)
        self.write("a/good.h", "int f(int* a);\n")
        self.write("a/bad.h", "int f(int* a);\nint g(int *a);\n")
        found = list(tidy.format_offenders(clang_format, self.root, ["a/good.h", "a/bad.h"]))
        self.assertEqual([(path, line) for path, line, _ in found], [("a/bad.h", 2)])

    def test_what_is_read_and_reported(self):
        self.write("lockstep/net/a.h", "text")
        self.write("tests/x/picture.bin", "")
        with open(os.path.join(self.root, "tests/x/picture.bin"), "wb") as file:
            file.write(b"\xff\xfe")
        self.write("build/generated.h", "text")
        self.assertEqual(tidy.read_project(self.root), {"lockstep/net/a.h": "text", "tests/x/picture.bin": ""})
        with contextlib.redirect_stdout(io.StringIO()) as output:
            self.assertEqual(tidy.report([("a.h", 3, "wrong")]), 1)
            self.assertEqual(tidy.report([]), 0)
        self.assertEqual(output.getvalue(), "a.h:3: wrong\n1 offence\n")


if __name__ == "__main__":
    unittest.main()
