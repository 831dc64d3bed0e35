"""A local stand-in for the HTTP interface of the Hugging Face hub, as far as huggingface_hub uses it for models.

It is written from the requests that huggingface_hub sends. It cannot show that the real hub answers in the same way.
"""

import base64
import hashlib
import http.server
import json
import re
from typing import Any

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class HubServer(http.server.ThreadingHTTPServer):
    """Holds the files of each branch of each repository. Private ones need the token `hf_right`."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.repositories: dict[str, dict[str, dict[str, bytes]]] = {}
        self.private: set[str] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def branch(self, repository: str, revision: str) -> dict[str, bytes] | None:
        """Return the files of a branch. A commit is named by the branch and 0123..."""
        branches = self.repositories.get(repository, {})
        return branches.get(next((name for name in branches if revision in (name, commit(name))), ""))


def commit(branch: str) -> str:
    return hashlib.sha1(branch.encode()).hexdigest()


class Handler(http.server.BaseHTTPRequestHandler):
    server: HubServer

    def do_POST(self) -> None:
        content = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        hub = self.server.repositories
        if self.headers.get("Authorization") != "Bearer hf_right":
            self.answer({"error": "Invalid username or password."}, 401)
        elif self.path == "/api/repos/create":
            asked = json.loads(content)
            name = f"{asked['organization']}/{asked['name']}"
            if asked.get("private") or asked.get("visibility") == "private":
                self.server.private.add(name)
            status = 409 if name in hub else 200
            hub.setdefault(name, {"main": {}})  # before the answer: the next request can come at once
            self.answer({"url": f"{self.server.url}/{name}"}, status)
        elif found := re.fullmatch(r"/api/models/([^/]+/[^/]+)/branch/(.+)", self.path):
            hub[found[1]].setdefault(found[2], {})
            self.answer({})
        elif re.fullmatch(r"/api/models/[^/]+/[^/]+/preupload/.+", self.path):
            files = [file["path"] for file in json.loads(content)["files"]]
            self.answer({"files": [{"path": p, "uploadMode": "regular", "shouldIgnore": False} for p in files]})
        elif found := re.fullmatch(r"/api/models/([^/]+/[^/]+)/commit/(.+)", self.path):
            for line in content.splitlines():
                if (entry := json.loads(line))["key"] == "file":
                    hub[found[1]][found[2]][entry["value"]["path"]] = base64.b64decode(entry["value"]["content"])
            self.answer({"commitUrl": f"{self.server.url}/{found[1]}/commit/{COMMIT}", "commitOid": COMMIT})
        else:  # the check of the YAML header
            self.answer({"errors": [], "warnings": []})

    def do_GET(self) -> None:
        if found := re.fullmatch(r"/api/models/([^/]+/[^/]+)/(revision|tree)/([^?]+)(\?.*)?", self.path):
            repository, kind, revision = found[1], found[2], found[3]
            if (files := self.readable(repository, revision)) is None:
                return
            listed = [{"type": "file", "path": p, "size": len(c), "oid": etag(c)} for p, c in files.items()]
            named = next(name for name in self.server.repositories[repository] if revision in (name, commit(name)))
            info = {"id": repository, "sha": commit(named), "siblings": [{"rfilename": path} for path in files]}
            self.answer(listed if kind == "tree" else info)
        elif found := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", self.path):
            if (files := self.readable(found[1], found[2])) is None:
                return
            if found[3] not in files:
                self.answer({}, 404, {"X-Error-Code": "EntryNotFound"})
            else:
                content = files[found[3]]
                self.answer(content, 200, {"ETag": f'"{etag(content)}"', "X-Repo-Commit": found[2]})
        else:
            self.answer({}, 404)

    def do_HEAD(self) -> None:
        self.do_GET()

    def readable(self, repository: str, revision: str) -> dict[str, bytes] | None:
        """Return the files of a branch, or answer that there is none."""
        hidden = repository in self.server.private and self.headers.get("Authorization") != "Bearer hf_right"
        if hidden or repository not in self.server.repositories:
            self.answer({}, 401 if hidden else 404, {"X-Error-Code": "RepoNotFound"})
            return None
        files = self.server.branch(repository, revision)
        if files is None:
            self.answer({}, 404, {"X-Error-Code": "RevisionNotFound"})
        return files

    def answer(self, content: Any, status: int = 200, headers: dict[str, str] | None = None) -> None:
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *arguments: object) -> None:
        pass


def etag(content: bytes) -> str:
    return hashlib.sha1(content).hexdigest()
