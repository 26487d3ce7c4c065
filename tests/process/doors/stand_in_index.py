"""A package index on 127.0.0.1 with tiny wheels, which stands for those of the internet."""

import base64
import hashlib
import http.server
import os
import threading
import zipfile


def write_wheel(folder, name, version, files=(), needs=(), scripts=()):
    """files: paths in site-packages, all empty. needs: names of packages. scripts: names of commands."""
    dist = f"{name.replace('-', '_')}-{version}"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    contents = {path: "" for path in files}
    contents |= {f"{dist}.data/scripts/{script}": "#!/bin/sh\n" for script in scripts}
    contents[f"{dist}.dist-info/METADATA"] = metadata + "".join(f"Requires-Dist: {need}\n" for need in needs)
    contents[f"{dist}.dist-info/WHEEL"] = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    record = ""
    for path, text in contents.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).decode().rstrip("=")
        record += f"{path},sha256={digest},{len(text.encode())}\n"
    contents[f"{dist}.dist-info/RECORD"] = record + f"{dist}.dist-info/RECORD,,\n"
    package = os.path.join(folder, name)
    os.makedirs(package, exist_ok=True)
    with zipfile.ZipFile(os.path.join(package, f"{dist}-py3-none-any.whl"), "w") as wheel:
        for path, text in contents.items():
            member = zipfile.ZipInfo(path)
            member.external_attr = (0o100755 if "/scripts/" in path else 0o100644) << 16
            wheel.writestr(member, text)


class Index:
    """Serves a folder of folders of wheels. paths: what was asked for."""

    def __init__(self, folder):
        self.paths = []
        paths = self.paths

        class Handler(http.server.SimpleHTTPRequestHandler):
            def __init__(self, *arguments):
                super().__init__(*arguments, directory=folder)

            def do_GET(self):
                paths.append(self.path)
                super().do_GET()

            def log_message(self, *arguments):
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def wheels(self):
        """The wheels that were fetched."""
        return [path.split("/")[-1] for path in self.paths if path.endswith(".whl")]

    def close(self):
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
