"""Output of `lockstep checkpoint` that cannot be written: on a full disk, without a reader, to nobody."""

import os
import subprocess

from tool import LOCKSTEP, ToolTest, flip, main, run, write_file, write_set


class OutputTest(ToolTest):
    def setUp(self):
        super().setUp()
        self.set = write_set(self.sets, 1)
        self.other = write_set(self.sets, 2, 5)

    def commands(self):
        """Each command, and its exit code for output that cannot be written."""
        run("convert", self.set, self.path("a.safetensors"), "--force")
        outputs = {"ls": [self.sets], "show": [self.set], "verify": [self.set], "diff": [self.set, self.set],
                   "convert": [self.set, self.path("b.safetensors"), "--force"],
                   "strip-prefix": [self.set, self.path("c.safetensors"), "--force", "--add-prefix", "m."],
                   "prune": [self.sets, "--keep-last", "9"]}
        for name, words in outputs.items():
            for more in ([], ["--json"], ["--help"]):
                yield [name, *words, *more], 2 if name == "diff" and more != ["--help"] else 1

    def refuse(self, words, expected, reason, **options):
        done = subprocess.run([LOCKSTEP, "checkpoint", *words], stderr=subprocess.PIPE, text=True, timeout=60,
                              check=False, **options)
        self.assertEqual(done.returncode, expected, (words, done.stderr))
        self.assertEqual(done.stderr, f"lockstep: writing to standard output failed: {reason}\n", words)

    def test_a_full_disk_is_an_error(self):
        for words, expected in self.commands():
            with open("/dev/full", "wb") as full:
                self.refuse(words, expected, "No space left on device", stdout=full)

    def test_a_reader_that_has_gone_is_an_error(self):
        for words, expected in self.commands():
            reader, writer = os.pipe()
            os.close(reader)
            self.refuse(words, expected, "Broken pipe", stdout=writer)
            os.close(writer)

    def test_a_closed_output_is_an_error_and_no_file_takes_its_place(self):
        for words, expected in self.commands():
            self.refuse(words, expected, "Bad file descriptor", preexec_fn=lambda: os.close(1))
        for written in ("a", "b"):
            run("diff", self.set, self.path(f"{written}.safetensors"))
        run("verify", self.sets)

    def test_more_than_fits_into_a_buffer_is_not_lost_either(self):
        path = self.path("many.safetensors")
        write_file(path, {f"tensor.{i}": ("U8", [1], b"1") for i in range(5000)})
        with open("/dev/full", "wb") as full:
            self.refuse(["show", path], 1, "No space left on device", stdout=full)
        with subprocess.Popen([LOCKSTEP, "checkpoint", "show", path], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              text=True) as tool:
            self.assertIn("tensor.0 ", tool.stdout.readline())
            tool.stdout.close()
            self.assertIn("Broken pipe", tool.stderr.read())
            self.assertEqual(tool.wait(60), 1)

    def test_what_the_command_found_stays_an_error_beside_it(self):
        flip(f"{self.other}/manifest.json", 40)
        with open("/dev/full", "wb") as full:
            self.refuse(["verify", self.sets], 1, "No space left on device", stdout=full)

    def test_the_other_commands_of_lockstep_fail_as_well(self):
        for words in (["--help"], ["--version"], ["--help-all"], ["run", "--help"], ["env"], ["env", "--json"], ["ps"],
                      ["top", "--once", "--interval", "0.1"], ["doctor"], ["run", "--dry-run", "true"]):
            with open("/dev/full", "wb") as full:
                done = subprocess.run([LOCKSTEP, *words], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60,
                                      check=False)
            self.assertEqual(done.returncode, 1, words)
            self.assertIn("lockstep: writing to standard output failed: No space left on device", done.stderr)


if __name__ == "__main__":
    main()
