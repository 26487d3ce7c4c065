"""Which commands of the pages are not run, and why."""

import os
import re

# Nobody can run these on one machine, or nobody should here.
_NEVER = (
    (r"\b(srun|sbatch|kubectl|docker|flux)\b", "needs a cluster; the tests process_launchers_* stand for it"),
    (r"\bh[12]\b|\b10\.0\.0\.", "needs several hosts"),
    (r"^script/test\b", "this test is one of those that it runs"),
    (r"--resume$", "trains until it is interrupted; the test process_example_preemption does both"),
    (r"^bench/run_all", "takes hours"),
)
# They take minutes.
_WHEN_ASKED = (
    (r"^script/demo\b", "trains for minutes"),
    (r"^script/docs\b", "the test docs_site does it"),
    (r"build/bin/", "needs what script/demo builds and writes"),
    (r"on_hosts\.py", "needs root and takes minutes"),
    (r"torch_suite\.py", "takes minutes; the test python_torch_suite runs a part of it"),
)


def is_asked_for():
    """What compiles the library anew takes many minutes: LOCKSTEP_TEST_DOORS=1, or all."""
    return os.environ.get("LOCKSTEP_TEST_DOORS") in ("1", "all")


def asked_for_all():
    return os.environ.get("LOCKSTEP_TEST_DOORS") == "all"


def reason_to_skip(page, command):
    """None: it is run."""
    for pattern, reason in _NEVER:
        if re.search(pattern, command):
            return reason
    if "on_hosts.py" in command and os.geteuid() != 0:
        return "needs root"
    if asked_for_all():
        return None
    if page.startswith("docs/tutorials/"):
        name = os.path.basename(page).removesuffix(".md").lower()
        return f"the test tutorial_{name} runs what this build has made; LOCKSTEP_TEST_DOORS=all"
    for pattern, reason in _WHEN_ASKED:
        if re.search(pattern, command):
            return reason + "; LOCKSTEP_TEST_DOORS=all"
    return None
