"""`lockstep checkpoint prune`."""

import json
import os

from tool import ToolTest, main, run, write_set


class PruneTest(ToolTest):
    def steps(self):
        return sorted(int(name[5:]) for name in os.listdir(self.sets))

    def test_the_rules_decide(self):
        for step, loss in ((100, 5), (200, 1), (300, 4), (400, 3), (500, 2)):
            write_set(self.sets, step, 1, 2, loss)
        before = self.steps()
        text = run("prune", self.sets, "--keep-last", 1, "--keep-best", 1, "--metric", "loss", "--dry-run")
        self.assertEqual([line.rpartition("-")[2] for line in text.splitlines() if "would remove" in line],
                         ["0000000100", "0000000300", "0000000400"])
        self.assertEqual(self.steps(), before)
        found = json.loads(run("prune", self.sets, "--keep-last", 1, "--keep-every", 200, "--keep-best", 1, "--metric",
                               "loss", "--higher-is-better", "--json"))
        self.assertEqual([os.path.basename(each) for each in found["removed"]], ["step-0000000300"])
        self.assertEqual(self.steps(), [100, 200, 400, 500])
        run("prune", self.sets, "--keep-last", 2)
        self.assertEqual(self.steps(), [400, 500])

    def test_numbers_that_mean_nothing_are_refused_and_zero_keeps_none(self):
        for step in (1, 2, 3):
            write_set(self.sets, step)
        for words in (["--keep-every", -1], ["--keep-every", -3], ["--keep-every", 1.5], ["--keep-last", 0],
                      ["--keep-last", -1], ["--keep-best", -1, "--metric", "loss"],
                      ["--keep-best", 0, "--metric", "loss"]):
            last = [] if words[0] == "--keep-last" else ["--keep-last", 1]
            self.assertIn(words[0], run("prune", self.sets, *last, *words, expected=2))
        self.assertEqual(self.steps(), [1, 2, 3])
        run("prune", self.sets, "--keep-last", 1, "--keep-every", 0)
        self.assertEqual(self.steps(), [3])


if __name__ == "__main__":
    main()
