"""`lockstep checkpoint verify`."""

import hashlib
import json
import os
import pty
import struct
import subprocess

from tool import LOCKSTEP, WRITER, ToolTest, flip, main, run, write_file, write_set


class VerifyTest(ToolTest):
    # fault: 24
    def test_damage_anywhere_in_a_directory_is_an_error(self):
        path = write_set(self.sets, 100)
        write_set(self.sets, 200)
        run("convert", path, f"{self.sets}/a.safetensors")
        self.assertEqual(run("verify", self.sets).count(": whole ("), 3)
        self.assertEqual(run("verify", path).count("whole"), 1)
        for damaged in (f"{path}/part-00000-of-00002.safetensors", f"{self.sets}/a.safetensors"):
            flip(damaged, -3)
            text = run("verify", self.sets, expected=1)
            self.assertEqual(text.count(": whole ("), 2)
            self.assertRegex(text, "DAMAGED: .*" + os.path.basename(damaged) + ".*XXH3-128 expected")
            self.assertIn("DAMAGED", run("verify", damaged if damaged.endswith("a.safetensors") else path, expected=1))
            flip(damaged, -3)
        os.remove(f"{path}/manifest.json")
        self.assertIn("manifest.json: no such file", run("verify", self.sets, expected=1))
        found = json.loads(run("verify", f"{self.sets}/a.safetensors", "--json"))
        self.assertEqual((len(found), found[0]["has_digests"]), (1, True))

    def test_a_file_without_digests_is_told_from_one_that_is_whole(self):
        path = self.path("a.safetensors")
        write_file(path, {"x": ("U8", [4], b"1234")})
        self.assertIn("readable; it has no digests", run("verify", path))
        os.truncate(path, os.path.getsize(path) - 1)
        self.assertIn("truncated", run("verify", path, expected=1))

    def test_a_terminal_shows_how_far_it_is(self):
        path = self.path("a.safetensors")
        size = 1 << 30
        header = json.dumps({"x": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
        with open(path, "wb") as file:
            file.write(struct.pack("<Q", len(header)) + header)
            file.truncate(8 + len(header) + size)  # a hole
        ours, theirs = pty.openpty()
        with subprocess.Popen([LOCKSTEP, "checkpoint", "verify", path], stdout=subprocess.DEVNULL, stderr=theirs):
            os.close(theirs)
            text = b""
            try:
                while part := os.read(ours, 4096):
                    text += part
            except OSError:  # the other end is closed
                pass
        os.close(ours)
        self.assertRegex(text.decode(), r"\r\x1b\[Kverifying a.safetensors: [\d.]+ MiB of 1.0 GiB")
        self.assertTrue(text.endswith(b"\r\x1b[K"))


class SignedTest(ToolTest):
    def token(self, name, digit):
        with open(self.path(name), "w", encoding="ascii") as file:
            file.write(digit * 64 + "\n")
        os.chmod(self.path(name), 0o600)
        return {**os.environ, "LOCKSTEP_TOKEN_FILE": self.path(name)}

    def signed_set(self, step):
        command = [WRITER, self.sets, str(step), "1", "2", "sign"]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True,
                              env=self.token("mine", "1")).stdout.strip()


class SignatureTest(SignedTest):
    # fault: S9
    def test_verify_tells_who_has_signed(self):
        mine, other = self.token("mine", "1"), self.token("other", "2")
        path = self.signed_set(1)
        self.assertRegex(run("verify", path, env=mine), r": whole \([^)]*, signed\)")
        run("verify", path, "--require-signature", "--token-file", self.path("mine"), env=other)
        for words in ([], ["--require-signature"]):
            self.assertIn("DAMAGED: " + path + "/manifest.json was signed with another token, or changed since",
                          run("verify", path, *words, expected=1, env=other))
        nobody = {**os.environ, "HOME": self.root, "LOCKSTEP_TOKEN_FILE": ""}
        self.assertIn("there is no token to check the signature", run("verify", path, env=nobody))
        self.assertIn("there is no token", run("verify", path, "--require-signature", expected=1, env=nobody))
        unsigned = write_set(self.sets, 2)
        self.assertIn("not signed)", run("verify", unsigned, env=mine))
        self.assertIn("is not signed, but a signature is required",
                      run("verify", self.sets, "--require-signature", expected=1, env=mine))
        self.assertIn("cannot read the token file", run("verify", path, "--token-file", self.path("x"), expected=1))
        found = json.loads(run("verify", self.sets, "--json", env=mine))
        self.assertEqual([each["signature"] for each in found], ["not signed", "signed"])


class HostileTest(SignedTest):
    """Manifests that somebody has changed and sealed anew."""

    def setUp(self):
        super().setUp()
        self.set, self.other = self.signed_set(1), self.signed_set(2)
        with open(f"{self.set}/manifest.json", encoding="utf-8") as file:
            text = file.read()
        self.body = text[:text.index(',"hmac_sha256":')] + "}"

    def forge(self, change):
        manifest = json.loads(self.body)
        change(manifest)
        zeros = json.dumps(manifest)[:-1] + f',"sha256":"{"0" * 64}"}}\n'
        digest = hashlib.sha256(zeros.encode()).hexdigest()
        with open(f"{self.set}/manifest.json", "w", encoding="utf-8") as file:
            file.write(zeros.replace("0" * 64, digest))

    def refused(self, why):
        out = self.path("out.safetensors")
        for words in (["verify", self.set], ["show", self.set], ["convert", self.set, out],
                      ["strip-prefix", self.set, out, "--add-prefix", "m"]):
            self.assertRegex(run(*words, expected=1), why)
        self.assertRegex(run("diff", self.set, self.other, expected=2), why)
        self.assertRegex(run("ls", self.sets), "DAMAGED: .*" + why)
        self.assertFalse(os.path.exists(out))

    # fault: S9
    def test_names_of_other_files_are_refused(self):
        self.forge(lambda manifest: None)
        run("verify", self.set)
        name = "part-00000-of-00002.safetensors"
        for bad in (f"../step-0000000002/{name}", f"{self.other}/{name}", f"./{name}", "/dev/zero", "..", "", ".hidden",
                    "manifest.json", "a\0b", "a\nb", "part-00001-of-00002.safetensors"):
            self.forge(lambda manifest, bad=bad: manifest["files"][0].update(name=bad))
            self.refused("the manifest is damaged: (invalid file name|two files have the name) '")
        self.assertIn("0 removed", run("prune", self.sets, "--keep-last", 1))
        self.assertEqual(sorted(os.listdir(self.sets)), ["step-0000000001", "step-0000000002"])

    # fault: S9
    def test_numbers_that_lead_elsewhere_are_refused(self):
        for change, why in (
                (lambda m: m.update(step=-1), "the step is -1"),
                (lambda m: m.update(step=2), "manifest.json has step 2, which differs from the step in the set's name"),
                (lambda m: m.update(step=2 ** 63), "the step is 9223372036854775808"),
                (lambda m: m.update(world_size=2 ** 40), "the world size is"),
                (lambda m: m["files"][0].update(bytes=2 ** 63), "a file's size is"),
                (lambda m: m["files"][0].update(bytes=7), "it has .* bytes; expected 7"),
                (lambda m: m["files"][1].update(rank=2), "a file's rank is 2"),
                (lambda m: m["files"].pop(), "file is 1; it must be from 0 to 0|has a piece without a row range"),
                (lambda m: m["tensors"]["weight"]["pieces"][0].update(file=2), "file is 2; it must be from 0 to 1"),
                (lambda m: m["tensors"]["weight"].update(shape=[2 ** 40, 2 ** 40]), "more dimensions or elements than"),
                (lambda m: m["tensors"]["weight"].update(shape=[2 ** 60, 2]), "more dimensions or elements than"),
                (lambda m: m["tensors"]["weight"].update(shape=[8] + [1] * 64), "more dimensions or elements than"),
                (lambda m: m["tensors"]["weight"].update(dtype="F4"), "the unknown type 'F4'"),
                (lambda m: m.update(version=2), "it has version 2"),
                (lambda m: m.update(more=1), "unknown member 'more'")):
            self.forge(change)
            self.refused(why)

    # fault: 24
    def test_parts_of_another_step_are_refused(self):
        self.forge(lambda manifest: None)
        name = "part-00000-of-00002.safetensors"
        os.remove(f"{self.set}/{name}")
        os.symlink(f"../step-0000000002/{name}", f"{self.set}/{name}")
        self.refused("it is a symbolic link, which is not followed here")
        os.remove(f"{self.set}/{name}")
        different = write_set(self.sets, 3, 5)
        os.link(f"{different}/{name}", f"{self.set}/{name}")
        text = run("verify", self.set, expected=1)
        self.assertRegex(text, "DAMAGED: .*(expected|which differs from the manifest|a digest that differs)")


if __name__ == "__main__":
    main()
