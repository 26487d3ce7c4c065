"""What the smallest examples print: basic_ddp_test.py <lockstep> <basic_ddp> <hello_all_reduce>"""

import pathlib
import re
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "launch"))
from processes import Tree  # noqa: E402

LOCKSTEP = BASIC_DDP = HELLO = ""
EXAMPLES = pathlib.Path(__file__).resolve().parents[3] / "examples"


class BasicDdp(unittest.TestCase):
    def lines_of(self, *command):
        with Tree(list(map(str, command)), {"OMP_NUM_THREADS": "1"}) as tree:
            code, output, error = tree.finish(60)
        self.assertEqual(code, 0, output + error)
        return output.splitlines()

    # feature: D-10
    def test_each_rank_says_once_and_in_one_line_that_it_runs(self):
        for ranks in (1, 4):
            lines = sorted(self.lines_of(BASIC_DDP, ranks))
            self.assertEqual(lines[:-1], [f"Running basic DDP example on rank {rank}." for rank in range(ranks)])
            self.assertRegex(lines[-1], f"^after 1 step all {ranks} ranks")

    # feature: J-04, J-13
    def test_under_the_launcher_a_program_of_25_lines_needs_no_setup(self):
        lines = self.lines_of(LOCKSTEP, "run", "--nproc-per-node", 2, HELLO)
        self.assertEqual(len(lines), 2)
        self.assertTrue(all("of 2 sees the sum 3" in line for line in lines), lines)
        program = (EXAMPLES / "hello_all_reduce/main.cpp").read_text(encoding="utf-8")
        self.assertLessEqual(len(program.splitlines()), 25)
        self.assertEqual(re.findall(r"\b(?:setenv|getenv|MASTER_\w+|argv)\b", program), [])


if __name__ == "__main__":
    LOCKSTEP, BASIC_DDP, HELLO = sys.argv[1:]
    unittest.main(argv=sys.argv[:1], verbosity=2)
