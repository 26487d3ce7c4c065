"""`lockstep checkpoint ls`, and what every command says of arguments that it does not know."""

import json
import os
import signal
import subprocess

from tool import WRITER, ToolTest, flip, main, run, write_set


class ListTest(ToolTest):
    def test_sets_and_files_are_listed_newest_first_and_damaged_ones_are_marked(self):
        for step in (100, 300, 200):
            write_set(self.sets, step, 1, 2, step / 1000)
        run("convert", f"{self.sets}/step-0000000300", f"{self.sets}/step-0000000250.safetensors")
        run("convert", f"{self.sets}/step-0000000300", f"{self.sets}/best.safetensors")
        os.truncate(f"{self.sets}/step-0000000200/part-00001-of-00002.safetensors", 9)
        flip(f"{self.sets}/step-0000000100/manifest.json", 40)
        lines = run("ls", self.sets).splitlines()
        self.assertEqual([line.split()[0] for line in lines],
                         ["NAME", "step-0000000300", "step-0000000250.safetensors", "step-0000000200",
                          "step-0000000100", "best.safetensors"])
        self.assertRegex(lines[1], r" 300 set +\d[\d.]* (B|KiB) +\S+ +2 +3 +loss=0.3$")
        self.assertRegex(lines[2], r" 250 file ")
        self.assertRegex(lines[3], r"DAMAGED: .*part-00001-of-00002.safetensors.*it has 9 bytes; expected \d+")
        self.assertRegex(lines[4], r"DAMAGED: .*manifest.json.*XXH3-128 expected")
        found = json.loads(run("ls", self.sets, "--json"))
        self.assertEqual([each["step"] for each in found["checkpoints"]], [300, 250, 200, 100, 300])
        self.assertEqual(["damage" in each for each in found["checkpoints"]], [False, False, True, True, False])
        self.assertEqual(found["unpublished"], [])

    def test_what_killed_writers_have_left_is_shown_and_pruned(self):
        write_set(self.sets, 1)
        command = [WRITER, self.sets, "2", "1", "2", "hidden"]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as living, \
                subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as killed:
            for process in (living, killed):
                self.assertEqual(process.stdout.readline(), "ready\n")
            killed.send_signal(signal.SIGKILL)
            killed.wait()
            text = run("ls", self.sets)
            self.assertRegex(text, r"\.step-0000000002\.writing-\w+: being written")
            self.assertRegex(text, r"\.step-0000000002\.writing-\w+: left by a killed writer; the next save")
            self.assertIn("would remove", run("prune", self.sets, "--keep-last", 5, "--dry-run"))
            self.assertEqual(len(os.listdir(self.sets)), 3)
            self.assertIn("1 removed, 1 checkpoints kept", run("prune", self.sets, "--keep-last", 5))
            self.assertEqual(len(os.listdir(self.sets)), 2)
            living.stdin.close()

    def test_what_is_not_there_is_named(self):
        self.assertIn("no such checkpoint or directory", run("ls", self.path("x"), expected=1))
        os.mkdir(self.sets)
        self.assertEqual(run("ls", self.sets), f"no checkpoints in {self.sets}\n")
        self.assertIn("no checkpoints", run("verify", self.sets, expected=1))
        for words in (["show"], ["bogus"], [], ["prune", self.sets], ["convert", "a"], ["strip-prefix", "a", "b"],
                      ["prune", self.sets, "--keep-last", 1, "--keep-best", 1], ["ls", self.sets, "--bogus"]):
            self.assertIn("--help'", run(*words, expected=2))


if __name__ == "__main__":
    main()
