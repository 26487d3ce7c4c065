"""What docs/ARTICLE.md says of its results is in their files: article_test.py <docs/article>"""

import csv
import pathlib
import re
import sys
import unittest

FOLDER = pathlib.Path()
EPOCHS = 10


def rows_of(name):
    with open(FOLDER / f"{name}.csv", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def column(name, key):
    return [float(row[key]) for row in rows_of(name)]


def worlds(prefix):
    """The runs of one kind that are done, by number of ranks."""
    return sorted(path.stem for path in FOLDER.glob(f"{prefix}_k[0-9].csv"))


class Results(unittest.TestCase):
    def test_every_run_has_all_epochs(self):
        runs = [path.stem for path in FOLDER.glob("*_k*.csv")]
        self.assertTrue(runs)
        for name in runs:
            with self.subTest(run=name):
                self.assertEqual(column(name, "epoch"), list(range(1, EPOCHS + 1)))

    # feature: N-04, N-09
    def test_in_lockstep_mode_the_number_of_ranks_changes_no_digit(self):
        runs = worlds("printed_lockstep_mode")
        self.assertEqual(len(runs), 3)
        for name in runs[1:]:
            for key in ("train_loss", "val_accuracy"):
                self.assertEqual(column(name, key), column(runs[0], key), name)
            # Ranks validate in batches of other sizes, so that other kernels add: the eighth digit differs.
            for one, other in zip(column(name, "val_loss"), column(runs[0], "val_loss")):
                self.assertAlmostEqual(one, other, delta=1.5e-6)

    # feature: Z-10
    def test_the_articles_tables_are_those_of_1_2_and_4_ranks(self):
        self.assertEqual(worlds("article"), ["article_k1", "article_k2", "article_k4"])
        self.assertEqual([column(name, "train_loss")[0] for name in worlds("article")], [0.5893, 0.5944, 0.5937])

    # feature: N-01, N-02, N-03, Z-24
    def test_a_batch_of_16_gives_the_articles_tables(self):
        self.assertEqual(worlds("tables_lockstep"), [f"tables_lockstep_k{ranks}" for ranks in (1, 2, 4)])
        for name in [*worlds("tables_lockstep"), *worlds("tables_pytorch")]:
            with self.subTest(run=name):
                ours, articles = column(name, "train_loss"), column(f"article_{name[-2:]}", "train_loss")
                self.assertEqual(ours, sorted(ours, reverse=True))
                self.assertLessEqual(0.178, ours[-1])
                self.assertLessEqual(ours[-1], 0.197)
                for epoch, (one, other) in enumerate(zip(ours, articles), start=1):
                    self.assertLess(abs(one - other), 0.01, f"epoch {epoch}")

    # feature: N-04
    def test_the_number_of_ranks_changes_the_training_losses_little(self):
        one, two, four = (column(name, "train_loss") for name in worlds("tables_lockstep"))
        for epoch, losses in enumerate(zip(one, two, four)):
            self.assertLessEqual(max(losses) - min(losses), 0.006, f"epoch {epoch + 1}")
            self.assertLessEqual(abs(one[epoch] - two[epoch]), 0.006 if epoch == 0 else 0.004, f"epoch {epoch + 1}")

    def test_lockstep_differs_from_pytorch_by_less_than_pytorchs_seeds_do(self):
        seeds = [column(f"printed_pytorch_k1{seed}", "train_loss") for seed in ("", "_seed1", "_seed2")]
        spread = [max(losses) - min(losses) for losses in zip(*seeds)]
        runs = worlds("printed_lockstep")
        self.assertEqual(runs, [f"printed_lockstep_k{ranks}" for ranks in (1, 2, 4)])
        for name in runs:
            theirs = column(name.replace("lockstep", "pytorch"), "train_loss")
            for epoch, (one, other) in enumerate(zip(column(name, "train_loss"), theirs)):
                self.assertLess(abs(one - other), spread[epoch], f"{name}, epoch {epoch + 1}")

    def test_in_the_setup_of_the_tables_lockstep_differs_from_pytorch_by_rounding(self):
        for one, other in zip(column("tables_lockstep_k1", "train_loss"), column("tables_pytorch_k1", "train_loss")):
            self.assertLess(abs(one - other), 0.0045)

    # feature: N-09
    def test_accuracies_of_1_and_4_ranks_agree(self):
        accuracies = [column(f"tables_lockstep_k{ranks}", "val_accuracy")[-1] for ranks in (1, 4)]
        self.assertAlmostEqual(*accuracies, delta=0.005)

    def test_the_first_steps_equal_those_of_pytorch(self):
        steps = rows_of("first_steps")
        for ranks in (1, 2, 4):
            for row in steps:
                self.assertEqual(row[f"lockstep_k{ranks}"], row[f"pytorch_on_lockstep_k{ranks}"], row)

    def test_the_page_shows_the_files(self):
        page = (FOLDER.parent / "ARTICLE.md").read_text(encoding="utf-8")
        for key, shown in re.findall(r"<!-- \w+ (\w+) -->\n(.*?)\n<!-- end", page, re.DOTALL):
            numbers = set(re.findall(r"\b\d\.\d{4}\b", shown))
            files = [column(path.stem, key) for path in FOLDER.glob("*_k*.csv")]
            self.assertLessEqual(numbers, {f"{value:.4f}" for values in files for value in values})


if __name__ == "__main__":
    FOLDER = pathlib.Path(sys.argv.pop(1))
    unittest.main(verbosity=2)
