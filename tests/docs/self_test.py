"""The tests of pages find what is wrong with a page: self_test.py"""

import pathlib
import tempfile
import unittest

import console
import tutorial
import tutorial_test

SOURCE = """int main() {
  const auto world = init();
  if (world) {
    train(world);

    save(world);
  }
}
"""
FILES = {"a.cpp": SOURCE, "b.cpp": SOURCE.replace("init()", "join()").replace("    save(world);\n", "")}


def read(path):
    if path not in FILES:
        raise FileNotFoundError(path)
    return FILES[path]


def block(info, *lines):
    return "\n".join(["Text.", f"```{info}", *lines, "```", "More."])


class Offences(unittest.TestCase):
    def found(self, text):
        return [message for _, message in tutorial.offences(text, read)]

    def test_code_is_in_its_source(self):
        for lines in (["const auto world = init();", "if (world) {"], ["train(world);", "", "save(world);"],
                      ["int main() {", "  // ...", "  if (world) {", "    ...", "  }"], ["int main() {", "...", "}"]):
            self.assertEqual(self.found(block("cpp a.cpp", *lines)), [])

    def test_code_that_is_not_in_its_source(self):
        for lines in (["const auto world = init()"], ["train(world);", "save(world);"], ["int main() {", "  if ()"],
                      ["if (world) {", "train(world);"], ["save(world);", "...", "if (world) {"]):
            self.assertEqual(len(self.found(block("cpp a.cpp", *lines))), 1, lines)

    def test_a_source_that_does_not_exist(self):
        self.assertEqual(self.found(block("cpp c.cpp", "x")), ["there is no file c.cpp"])

    def test_unmarked_blocks_are_not_compared(self):
        self.assertEqual(self.found(block("cpp", "anything")) + self.found(block("", "anything")), [])

    def test_a_block_has_an_end(self):
        with self.assertRaisesRegex(ValueError, "line 2: a block without end"):
            self.found("\n```cpp\nx\n")

    def test_a_diff_is_all_of_it(self):
        lines = ["-  const auto world = init();", "+  const auto world = join();", "not a line", "-    save(world);"]
        self.assertEqual(self.found(block("diff a.cpp b.cpp 2", *lines)), [])
        too_many = self.found(block("diff a.cpp b.cpp 1", *lines))
        self.assertRegex(too_many[0], "^2 lines change from a.cpp to b.cpp; at most 1")
        for wrong in (lines[:3], [*lines, "+ more"], [lines[1], lines[0], lines[3]]):
            other = self.found(block("diff a.cpp b.cpp 2", *wrong))
            self.assertRegex(other[0], "^the difference of a.cpp and b.cpp is\n@@")

    def test_output_is_checked_or_says_that_it_is_not(self):
        self.assertEqual(self.found(block("console", "$ one", "$ two")), [])
        self.assertEqual(self.found(block("console elsewhere", "$ one", "1")), [])
        self.assertRegex(self.found(block("console", "$ one", "1"))[0], "^output is shown, and nothing checks it")
        self.assertRegex(self.found(block("console rum", "$ one", "1"))[0], "^a console block is not marked by 'rum'")
        self.assertRegex(self.found(block("console", "1"))[0], "^line 3: output without a command")


class Output(unittest.TestCase):
    def test_in_order(self):
        for expected, printed in ((["a", "b"], ["a", "b"]), (["a", "..."], ["a"]), (["...", "c"], ["a", "b", "c"]),
                                  (["loss 0.3..."], ["loss 0.3127"]), (["a", "...", "c", "...", "e"], list("abcde")),
                                  (["...", "b", "...", "b"], ["b", "b"]), ([], [])):
            self.assertTrue(console.is_output(expected, printed), (expected, printed))

    def test_not_in_order(self):
        for expected, printed in ((["a"], ["a", "b"]), (["a", "b"], ["b", "a"]), (["loss 0.3..."], ["loss 0.4"]),
                                  (["a", "...", "c", "...", "b"], ["a", "b", "c"]), (["...", "b", "...", "b"], ["b"]),
                                  (["a.c"], ["abc"]), ([], ["a"]), (["a"], [])):
            self.assertFalse(console.is_output(expected, printed), (expected, printed))

    def test_without_order(self):
        for expected, printed in ((["b", "a"], ["a", "b"]), (["a...", "a1"], ["a1", "a2"]), (["b", "..."], ["a", "b"])):
            self.assertTrue(console.is_output(expected, printed, in_order=False), (expected, printed))
        for expected, printed in ((["a"], ["a", "b"]), (["a", "a"], ["a"]), (["c", "..."], ["a", "b"])):
            self.assertFalse(console.is_output(expected, printed, in_order=False), (expected, printed))

    def test_the_load_of_the_machine(self):
        late = "[lockstep] rank 0: warning: rank 1 (host h) delays the others: it was last in 56 % of 9 steps"
        not_late = "[0] [lockstep] rank 0: rank 1 (host h) is no longer a straggler"
        self.assertTrue(console.is_output(["a", "b"], ["a", late, "b", not_late]))
        self.assertTrue(console.is_output(["a", "[lockstep] rank 0: ... delays the others..."], ["a", late]))
        self.assertFalse(console.is_output(["a", "[lockstep] rank 0: ... delays the others..."], ["a"]))
        self.assertFalse(console.is_output(["a"], ["a", "[lockstep] rank 0: warning: another"]))


class Commands(unittest.TestCase):
    def found(self, text):
        with tempfile.TemporaryDirectory() as folder:
            return list(tutorial_test.run_blocks(text, folder, pathlib.Path(folder)))

    def test_what_commands_print(self):
        text = block("console run", "$ echo one; echo two >&2", "one", "two", "$ echo three \\", "  four > file")
        text += "\n" + block("console run unordered", "$ printf 'b\\na\\n'; cat file", "a", "b", "three four")
        self.assertEqual(self.found(text), [])

    def test_other_output(self):
        self.assertEqual(self.found(block("console run", "$ echo one", "1")), [(3, "the command prints\none")])

    def test_a_command_that_fails(self):
        text = block("console run", "$ echo one; exit 3", "one")
        self.assertEqual(self.found(text), [(3, "the command exits with 3 and prints\none")])
        text = block("console run", '$ bash -c "exit 3" || echo "exit code $?"', "exit code 3")
        self.assertEqual(self.found(text), [])

    def test_other_blocks_are_not_run(self):
        text = block("console", "$ exit 3") + "\n" + block("console elsewhere", "$ exit 3", "1")
        self.assertEqual(self.found(text), [])


if __name__ == "__main__":
    unittest.main(verbosity=2)
