"""A hub of Hugging Face on this machine, which keeps files and gives them back."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub:
    """Repositories by "<kind>/<owner>/<name>": their files, tags, whether they are private, and the paths asked for."""

    def __init__(self) -> None:
        self.files: dict[str, dict[str, bytes]] = {}
        self.tags: list[str] = []
        self.asked: list[str] = []
        self.private: dict[str, bool] = {}
        self.closed = False

    def post(self, path: str, body: bytes) -> tuple[int, Any]:
        if self.closed:
            return 401, {"error": "Invalid credentials"}
        if path == "/api/repos/create":
            asked = json.loads(body)
            owner = asked.get("organization") or asked["name"].partition("/")[0]
            repo = f"{asked.get('type') or 'model'}s/{owner}/{asked['name'].rpartition('/')[2]}"
            self.files.setdefault(repo, {})
            self.private[repo] = asked.get("private", False) or asked.get("visibility") == "private"
            return 200, {"url": f"http://127.0.0.1/{owner}/{asked['name']}"}
        if path == "/api/validate-yaml":  # of a model card
            return 200, {"errors": [], "warnings": []}
        _, _, kind, owner, name, verb, *_ = path.split("/")
        if verb == "preupload":
            given = [
                {"path": f["path"], "uploadMode": "regular", "shouldIgnore": False} for f in json.loads(body)["files"]
            ]
            return 200, {"files": given}
        if verb == "commit":
            for line in map(json.loads, body.splitlines()):
                if line["key"] == "file":
                    kept = self.files[f"{kind}/{owner}/{name}"]
                    kept[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
            at = f"http://127.0.0.1/{'datasets/' * (kind == 'datasets')}{owner}/{name}/commit/{COMMIT}"
            return 200, {"success": True, "commitOid": COMMIT, "commitUrl": at}
        self.tags.append(json.loads(body)["tag"])
        return 200, {}

    def get(self, path: str) -> tuple[int, Any]:
        if found := re.fullmatch(r"/api/(models|datasets)/(\w+/\w+)(/revision/\S+|/tree/\S+)?", path):
            repo = self.files.get(f"{found[1]}/{found[2]}")
            if repo is None:
                return 404, {}
            if "/tree/" in path:
                return 200, [{"type": "file", "path": n, "size": len(d), "oid": "0" * 40} for n, d in repo.items()]
            listed = [{"rfilename": name, "size": len(data)} for name, data in repo.items()]
            return 200, {"id": found[2], "sha": COMMIT, "siblings": listed}
        if found := re.fullmatch(r"/(datasets/)?(\w+/\w+)/resolve/\w+/(\S+)", path):
            kind = "datasets" if found[1] else "models"
            data = self.files.get(f"{kind}/{found[2]}", {}).get(found[3].replace("%2F", "/"))
            return (404, {}) if data is None else (200, data)
        return 404, {}


@contextmanager
def serving(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """Let LeRobot and its hub library know the hub of this machine alone."""
    import huggingface_hub.constants
    from lerobot.utils import constants as lerobot

    kept = Hub()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.answer(*kept.post(self.path, self.rfile.read(int(self.headers["Content-Length"]))))

        def do_GET(self) -> None:
            kept.asked.append(self.path)
            self.answer(*kept.get(self.path.partition("?")[0]))

        do_HEAD = do_GET

        def answer(self, status: int, content: Any) -> None:
            body = content if isinstance(content, bytes) else json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("ETag", f'"{hashlib.sha256(body).hexdigest()}"')
            self.send_header("X-Repo-Commit", COMMIT)
            if status == 404:
                self.send_header("X-Error-Code", "RepoNotFound")
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    here = f"http://127.0.0.1:{server.server_port}"
    address = here + "/{repo_id}/resolve/{revision}/{filename}"
    there = {"ENDPOINT": here, "HUGGINGFACE_CO_URL_TEMPLATE": address, "HF_HUB_CACHE": str(tmp_path / "cache")}
    for name, value in {**there, "HF_HUB_OFFLINE": False}.items():
        monkeypatch.setattr(huggingface_hub.constants, name, value)
    monkeypatch.setattr(lerobot, "HF_LEROBOT_HOME", tmp_path / "home")
    monkeypatch.setattr(lerobot, "HF_LEROBOT_HUB_CACHE", tmp_path / "home" / "hub")
    yield kept
    server.shutdown()
    server.server_close()
