"""Core without CUDA: its lock holds all that quickstart needs, and uv takes PyTorch from PyTorch's own index."""

from __future__ import annotations

import base64
import hashlib
import os
import shutil
import ssl
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from scripts.install_size import measure, megabytes, without

HOST, FILE = "download.pytorch.org", "torch-2.11.0+cpu-py3-none-any.whl"


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_quickstart_runs_on_core_without_cuda(tmp_path: Path) -> None:
    size, ran = measure(tmp_path, lend=True)
    assert ran.metric == "quickstart_failed" and ran.value == 0, ran.notes
    assert size.value < 1200, "with 750 MB of PyTorch, 2 GB at most"
    assert not (tmp_path / "env" / "lib" / "python3.12" / "site-packages" / "triton").exists()


def test_room_on_disk_and_locks_without_packages(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(os.urandom(10**6))
    (tmp_path / "b").hardlink_to(tmp_path / "a")
    (tmp_path / "c").symlink_to("/")
    assert megabytes(tmp_path) == pytest.approx(1.0, rel=0.05)
    lock = "# head\na==1 \\\n    --hash=sha256:0\n    # via b\nb==2 \\\n    --hash=sha256:1\n"
    assert without(lock, ("a",)) == "# head\nb==2 \\\n    --hash=sha256:1\n"


# ---- a stand-in for PyTorch's index, on this machine ----------------------------------------------------------------


def wheel_of_torch(folder: Path) -> bytes:
    """A wheel that is named torch and holds one line."""
    path, info = folder / FILE, "torch-2.11.0+cpu.dist-info"
    files = {"torch.py": "cuda = None\n",
             f"{info}/METADATA": "Metadata-Version: 2.1\nName: torch\nVersion: 2.11.0+cpu\n",
             f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"}  # fmt: skip
    digests = {name: base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
               for name, text in files.items()}  # fmt: skip
    record = "".join(f"{name},sha256={digests[name]},{len(text)}\n" for name, text in files.items())
    with zipfile.ZipFile(path, "w") as file:
        for name, text in {**files, f"{info}/RECORD": f"{record}{info}/RECORD,,\n"}.items():
            file.writestr(name, text)
    return path.read_bytes()


class Index(BaseHTTPRequestHandler):
    """A proxy that answers itself, as the host of PyTorch's wheels; other hosts are refused."""

    wheel: bytes
    context: ssl.SSLContext
    asked: list[str]

    def do_CONNECT(self) -> None:
        if self.path != f"{HOST}:443":
            self.send_error(403)
            return
        self.send_response(200)
        self.end_headers()
        self.connection = self.context.wrap_socket(self.connection, server_side=True)
        self.rfile, self.wfile = self.connection.makefile("rb"), self.connection.makefile("wb")
        self.close_connection = False

    def do_GET(self) -> None:
        self.asked.append(self.path)
        page = f'<a href="/whl/cpu/{FILE.replace("+", "%2B")}">{FILE}</a>'.encode()
        body = self.wheel if self.path.endswith(".whl") else page
        self.send_response(200)
        self.send_header("Content-Type", "application/zip" if body is self.wheel else "text/html")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        self.wfile.flush()
        self.close_connection = True

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def index(tmp_path: Path) -> Iterator[tuple[dict[str, str], list[str], str]]:
    """Environment of uv, addresses that were asked for, and the checksum of the wheel."""
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-keyout", key, "-out", certificate,
         "-subj", f"/CN={HOST}", "-addext", f"subjectAltName=DNS:{HOST}",
         "-addext", "basicConstraints=critical,CA:FALSE"],
        check=True, capture_output=True,
    )  # fmt: skip
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    wheel, asked = wheel_of_torch(tmp_path), list[str]()
    handler = type("Handler", (Index,), {"wheel": wheel, "context": context, "asked": asked})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    proxy = f"http://127.0.0.1:{server.server_port}"
    env = {"HTTPS_PROXY": proxy, "SSL_CERT_FILE": str(certificate), "UV_CACHE_DIR": str(tmp_path / "cache"),
           "PATH": os.environ["PATH"], "HOME": str(tmp_path), "UV_HTTP_RETRIES": "0"}  # fmt: skip
    yield env, asked, hashlib.sha256(wheel).hexdigest()
    server.shutdown()
    server.server_close()


@pytest.mark.skipif(shutil.which("openssl") is None, reason="makes a certificate")
@pytest.mark.parametrize("damaged", [False, True], ids=["as locked", "damaged"])
def test_pytorch_comes_from_its_own_index_and_is_checked(
    index: tuple[dict[str, str], list[str], str], damaged: bool, tmp_path: Path
) -> None:
    env, asked, checksum = index
    uv = Path(sys.executable).parent / "uv"
    lock, site = tmp_path / "lock.txt", tmp_path / "site"
    lock.write_text(f"torch==2.11.0+cpu \\\n    --hash=sha256:{'0' * 64 if damaged else checksum}\n")
    flags = ("--require-hashes", "--no-deps", "--torch-backend", "cpu")  # those of scripts/setup.sh
    assert " ".join(flags[1:]) in (Path(__file__).parents[1] / "scripts" / "setup.sh").read_text()
    done = subprocess.run([uv, "pip", "install", "--no-config", "--target", site, "--python", sys.executable, *flags,
                           "-r", lock], env=env, cwd=tmp_path, capture_output=True, text=True, check=False)  # fmt: skip
    assert asked and all(path.startswith("/whl/cpu/") for path in asked), done.stderr
    assert (done.returncode == 0) != damaged, done.stderr
    assert (site / "torch.py").exists() != damaged
