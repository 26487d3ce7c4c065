"""A newcomer's shell: commands run one after the other, and what one exports or where it goes holds for the next."""

import os
import signal
import subprocess

_LEAVES = 'eval "$DOORS_COMMAND"; code=$?; unset DOORS_COMMAND; env -0 >"$DOORS_STATE"; exit $code'


class Shell:
    def __init__(self, folder, environment, state):
        """state: a path for a file of its own."""
        self.folder, self.environment, self._state = folder, dict(environment), state

    def run(self, command, folder=None, limit_s=3600):
        """The exit code, and what was printed on both streams. A command that takes longer than its limit is killed
        with all that it has started, and its exit code is None."""
        own = {"DOORS_COMMAND": command, "DOORS_STATE": self._state}
        with subprocess.Popen(["bash", "-c", _LEAVES], cwd=folder or self.folder, env=self.environment | own,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              errors="replace", start_new_session=True) as process:
            try:
                printed, _ = process.communicate(timeout=limit_s)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                return None, process.communicate()[0]
        if os.path.exists(self._state):
            self._take_over(folder is None)
        return process.returncode, printed

    def _take_over(self, also_the_folder):
        with open(self._state, encoding="utf-8", errors="surrogateescape") as file:
            entries = [entry.split("=", 1) for entry in file.read().split("\0") if "=" in entry]
        os.remove(self._state)
        left = dict(entries)
        if also_the_folder:
            self.folder = left["PWD"]
        self.environment = {name: value for name, value in left.items()
                            if name not in ("DOORS_STATE", "PWD", "OLDPWD", "SHLVL", "_")}
