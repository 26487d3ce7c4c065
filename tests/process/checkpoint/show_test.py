"""`lockstep checkpoint show`."""

import json
import os

from tool import ToolTest, main, run, write_file, write_set


class ShowTest(ToolTest):
    def test_show_has_a_line_for_each_tensor(self):
        path = write_set(self.sets, 400, 7, 3, 0.25)
        lines = run("show", path).splitlines()
        self.assertRegex(lines[0], r"^empty   F16 \[0, 3\] +0 bytes$")
        self.assertRegex(lines[1], r"^scalar  I64 \[\] +8 bytes$")
        self.assertRegex(lines[2], r"^weight  I64 \[8, 2\] +128 bytes$")
        self.assertEqual(lines[3], "3 tensors, 136 bytes (136 B)")
        self.assertRegex(lines[4], r"^set of 3 files, \d+ bytes$")
        for line in ("step: 400", "ranks: 3", "metric loss: 0.25", "metadata version: 7"):
            self.assertIn(line, lines)
        found = json.loads(run("show", path, "--json"))
        self.assertEqual(found["user"], {"epoch": 3, "list": [1, 2.5, None]})
        self.assertEqual(found["tensors"]["weight"], {"dtype": "I64", "shape": [8, 2], "bytes": 128})

    def test_a_directory_of_checkpoints_is_refused_with_what_to_name(self):
        write_set(self.sets, 100)
        newest = write_set(self.sets, 400)
        for words in (("show", self.sets), ("diff", self.sets, newest)):
            error = run(*words, expected=1 if words[0] == "show" else 2)
            self.assertIn(f"{self.sets} is a directory of checkpoints; name one of them, such as {newest}\n", error)
        os.mkdir(self.path("empty"))
        self.assertIn("contains no checkpoint", run("show", self.path("empty"), expected=1))

    def test_a_file_of_another_kind_is_not_called_damaged(self):
        text = self.path("notes.txt")
        with open(text, "w", encoding="ascii") as file:
            file.write("root:x:0:0:root:/root:/bin/bash\n" * 40)
        for verb in ("show", "verify"):
            error = run(verb, text, expected=1)
            self.assertIn(f"not a checkpoint: {text} has an unknown file format", error)
            self.assertNotIn("damaged", error.lower())
        array = self.path("a.npy")
        with open(array, "wb") as file:
            file.write(b"\x93NUMPY\1\0" + bytes(120))
        self.assertIn(f"not a checkpoint: {array} is a file of NumPy; load it", run("show", array, expected=1))
        lost = self.path("lost.safetensors")
        for begin in (b"\xff", b"\x80\x02\0\0\0\0\0\0X"):  # the latter is also how a pickle begins
            with open(lost, "wb") as file:
                file.write(begin * 600)
            self.assertIn(f"{lost}: DAMAGED: ", run("verify", lost, expected=1))

    def test_names_from_a_file_do_not_reach_the_terminal_as_they_are(self):
        write_file(self.path("a.safetensors"), {"x": ("U8", [1], b"1")}, {"note": "\x1b[31mred\n"})
        text = run("show", self.path("a.safetensors"))
        self.assertIn("metadata note: ?[31mred?", text)
        self.assertIn("without digests", text)


if __name__ == "__main__":
    main()
