"""python -m lockstep.run: `lockstep run`, which starts Python scripts with this Python."""

import os
import shutil
import sys


def main():
    own = os.path.join(os.path.dirname(os.path.abspath(__file__)), "bin", "lockstep")
    program = own if os.access(own, os.X_OK) else shutil.which("lockstep")
    if program is None:
        sys.exit("lockstep.run: the command lockstep is neither in this package nor in PATH; install the wheel again")
    os.environ.setdefault("PYTHON_EXEC", sys.executable)
    os.execv(program, [program, "run", *sys.argv[1:]])


if __name__ == "__main__":
    main()
