# SPDX-License-Identifier: Apache-2.0
"""A stand-in for a hub of models: what a hub's clients ask for, on a real socket, and faults.

It serves one repository at one commit. Faults are given by name and meet the next requests.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

COMMIT = "0123456789abcdef0123456789abcdef01234567"
NAME = "someone/tiny"
LARGE = 1024
"""Files from this size on are kept by sha256 (LFS), as a hub does it by its own rules."""

REFUSALS = {
    "429": (429, "", "too many requests"),
    "403": (403, "GatedRepo", "Access to model is restricted"),
    "500": (500, "", "broken"),
}
"""Faults that are a status: status, the hub's code, its text."""


class HubServer(ThreadingHTTPServer):
    """The server. ``faults``: a fault's name to how many requests it still meets; ``cut`` ends bodies early."""

    def __init__(self, files: dict[str, bytes], token: str | None = None, port: int = 0) -> None:
        self.files, self.token = files, token
        self.faults: dict[str, int] = {}
        self.cut_after = 0
        self.answer: object = None
        """What it answers instead of its list of files."""
        self.sent: dict[str, int] = {}
        """Bytes of bodies, by path."""
        super().__init__(("127.0.0.1", port), Handler)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def close(self) -> None:
        self.shutdown()
        self.server_close()

    def strikes(self, fault: str) -> bool:
        """Say whether a fault meets this request, and count it."""
        left = self.faults.get(fault, 0)
        self.faults[fault] = left - 1
        return left > 0


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    server: HubServer

    def log_message(self, *_: object) -> None:
        """Keep quiet."""

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        hub = self.server
        path = self.path.partition("?")[0]
        if hub.token and self.headers.get("Authorization") != f"Bearer {hub.token}":
            self.refuse(401, "RepoNotFound", "Invalid username or password.")
        elif fault := next((name for name in REFUSALS if hub.strikes(name)), None):
            self.refuse(*REFUSALS[fault])
        elif found := re.fullmatch(rf"/api/models/{NAME}/(revision|tree)/(\w+)", path):
            self.listing(*found.groups())
        elif found := re.fullmatch(rf"/{NAME}/resolve/{COMMIT}/(.+)", path):
            self.file(found[1])
        else:
            self.refuse(404, "RepoNotFound", "Repository not found")

    def refuse(self, status: int, code: str, text: str) -> None:
        self.head(status, {"X-Error-Code": code, "X-Error-Message": text, "Retry-After": "0", "Content-Length": "0"})

    def head(self, status: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            if value:
                self.send_header(name, value)
        self.end_headers()

    def listing(self, form: str, revision: str) -> None:
        """Answer the list of files, in the form of a revision or of a tree."""
        if revision != COMMIT:
            self.refuse(404, "RevisionNotFound", "Invalid rev id")
            return
        tree = form == "tree"
        rows: Any = []
        for path, content in self.server.files.items():
            row: dict[str, Any] = {"path" if tree else "rfilename": path, "size": len(content)}
            row |= {"type": "file", "oid": blob(content)} if tree else {"blobId": blob(content)}
            if len(content) >= LARGE:
                row["lfs"] = {"oid" if tree else "sha256": sha256(content), "size": len(content), "pointerSize": 130}
            rows.append(row)
        document = rows if tree else {"_id": "1", "id": NAME, "modelId": NAME, "sha": COMMIT, "siblings": rows}
        raw = json.dumps(document if self.server.answer is None else self.server.answer).encode()
        self.head(200, {"Content-Type": "application/json", "Content-Length": str(len(raw))})
        self.wfile.write(raw)

    def file(self, path: str) -> None:
        """Answer a file, from where the client has it."""
        content = self.server.files[path]
        large = len(content) >= LARGE
        found = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        begin = int(found[1]) if found else 0
        part = content[begin:]
        headers = {"ETag": f'"{sha256(content) if large else blob(content)}"', "X-Repo-Commit": COMMIT}
        headers |= {"Accept-Ranges": "bytes", "Content-Length": str(len(part))}
        if begin:
            headers["Content-Range"] = f"bytes {begin}-{len(content) - 1}/{len(content)}"
        self.head(206 if begin else 200, headers)
        if self.command == "HEAD":
            return
        if large and self.server.strikes("wrong content"):
            part = bytes(len(part))
        if large and self.server.strikes("cut"):
            part = part[: self.server.cut_after]
            self.close_connection = True
        self.server.sent[path] = self.server.sent.get(path, 0) + len(part)
        self.wfile.write(part)


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def blob(content: bytes) -> str:
    """Return git's name for a content."""
    return hashlib.sha1(f"blob {len(content)}\0".encode() + content, usedforsecurity=False).hexdigest()


def tiny_repository(folder: Path) -> dict[str, bytes]:
    """Return the files of a model's folder as a repository, with some that engines do not load."""
    files = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    return {
        **files,
        "pytorch_model.bin": b"x" * 5000,
        ".gitattributes": b"*.safetensors filter=lfs\n",
        "README.md": b"#",
    }
