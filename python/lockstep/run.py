"""The command `lockstep` of the wheel, and python -m lockstep.run for `lockstep run`. Both start Python scripts with
this Python."""

import os
import shutil
import sys


def _program():
    own = os.path.join(os.path.dirname(os.path.abspath(__file__)), "bin", "lockstep")
    if os.access(own, os.X_OK):
        return own
    found = shutil.which("lockstep")  # of a build, if only the sources of this package are there
    if found is None or os.path.realpath(found) == os.path.realpath(sys.argv[0]):
        sys.exit("lockstep: the wheel's program lockstep/bin/lockstep is missing; reinstall the wheel")
    return found


def _become(arguments):
    os.environ.setdefault("PYTHON_EXEC", sys.executable)
    program = _program()
    os.execv(program, [program, *arguments])


def command():
    _become(sys.argv[1:])


def main():
    _become(["run", *sys.argv[1:]])


if __name__ == "__main__":
    main()
