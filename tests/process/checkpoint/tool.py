"""What the tests of `lockstep checkpoint` share. Each is run with <lockstep> <set_writer> [<python with torch>]."""

import atexit
import json
import os
import resource
import struct
import subprocess
import sys
import tempfile
import unittest

LOCKSTEP = os.path.abspath(sys.argv[1])
WRITER = os.path.abspath(sys.argv[2])
PYTHON = sys.argv[3] if len(sys.argv) > 3 else ""


def run(*words, expected=0, **options):
    done = subprocess.run([LOCKSTEP, "checkpoint", *map(str, words)], capture_output=True, text=True, timeout=120,
                          check=False, **options)
    assert done.returncode == expected, (words, done.returncode, done.stdout, done.stderr)
    return done.stdout if expected == 0 else done.stdout + done.stderr


def write_set(directory, step, version=1, writers=2, *more):
    done = subprocess.run([WRITER, directory, str(step), str(version), str(writers), *map(str, more)],
                          capture_output=True, text=True, timeout=60, check=True)
    return done.stdout.strip()


class Interpreter:
    """A Python with torch, which takes seconds to import: one for all that a test lets it do."""

    SERVE = """if True:
        import contextlib, io, json, sys, traceback
        for line in sys.stdin:
            code, *sys.argv[1:] = json.loads(line)
            output, error = io.StringIO(), None
            try:
                with contextlib.redirect_stdout(output):
                    exec(code, {"__name__": "__main__"})
            except BaseException:
                error = traceback.format_exc()
            print(json.dumps([output.getvalue(), error]), flush=True)
    """

    def __init__(self):
        self.process = subprocess.Popen([PYTHON, "-c", self.SERVE], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        text=True)
        atexit.register(self.process.communicate)

    def run(self, code, *words):
        """What it prints; words: its arguments"""
        self.process.stdin.write(json.dumps([code, *words]) + "\n")
        self.process.stdin.flush()
        output, error = json.loads(self.process.stdout.readline())
        assert error is None, error
        return output


def python(code, *words):
    global interpreter
    interpreter = interpreter or Interpreter()
    return interpreter.run(code, *words)


interpreter = None


def write_file(path, tensors, metadata=None):
    """Without the package: name -> dtype, shape, bytes."""
    header, data = {"__metadata__": metadata or {}}, b""
    for name, (dtype, shape, content) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(content)]}
        data += content
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + data)


def flip(path, offset):
    with open(path, "r+b") as file:
        file.seek(offset, os.SEEK_SET if offset >= 0 else os.SEEK_END)
        byte = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte[0] ^ 1]))


SANITIZED = bool(os.environ.get("LOCKSTEP_TEST_SANITIZED"))


def limited_memory(mebibytes=256):
    """Options of run(). The sanitizers need more for themselves."""
    def limit():
        resource.setrlimit(resource.RLIMIT_DATA, (mebibytes << 20, mebibytes << 20))

    return {} if SANITIZED else {"preexec_fn": limit}


class ToolTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.root = self.folder.name
        self.sets = os.path.join(self.root, "sets")

    def path(self, name):
        return os.path.join(self.root, name)


def main():
    unittest.main(argv=sys.argv[:1])
