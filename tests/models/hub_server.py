"""A hub on this machine: enough of the real one's HTTP for the real client to list a commit and download it."""

import hashlib
import json
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit


class HubServer:
    """Serves one commit of one model; `status` and `cut` make it answer badly, `requests` counts what was asked."""

    def __init__(self, name: str, commit: str, files: dict[str, bytes]) -> None:
        self.name, self.commit, self.files = name, commit, files
        self.status = 200
        self.error_code = ""
        self.cut: set[str] = set()
        self.wrong: set[str] = set()
        self.requests: Counter[str] = Counter()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> "HubServer":
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def info(self) -> dict[str, object]:
        siblings = [{"rfilename": path, **self._entry(path)} for path in self.files]
        return {"id": self.name, "sha": self.commit, "siblings": siblings, "tags": ["license:mit"], "private": False}

    def tree(self) -> list[dict[str, object]]:
        return [{"type": "file", "path": path, "oid": "0" * 40, **self._entry(path)} for path in self.files]

    def _entry(self, path: str) -> dict[str, object]:
        content = self.files[path]
        entry: dict[str, object] = {"size": len(content)}
        if path.endswith(".safetensors"):
            lfs = {"size": len(content), "pointerSize": 100, "sha256": self._sha256(path), "oid": self._sha256(path)}
            entry["lfs"] = lfs
        return entry

    def _sha256(self, path: str) -> str:
        return hashlib.sha256(self.files[path]).hexdigest()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        hub = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, format: str, *args: object) -> None:
                pass

            def do_HEAD(self) -> None:
                self.do_GET()

            def do_GET(self) -> None:
                path = unquote(urlsplit(self.path).path)
                hub.requests[path] += 1
                if hub.status != 200:
                    self.answer(hub.status, b"{}", {"X-Error-Code": hub.error_code} if hub.error_code else {})
                elif path.startswith(f"/api/models/{hub.name}/tree/{hub.commit}"):
                    self.answer(200, json.dumps(hub.tree()).encode())
                elif path in {f"/api/models/{hub.name}", f"/api/models/{hub.name}/revision/{hub.commit}"}:
                    self.answer(200, json.dumps(hub.info()).encode())
                elif path.startswith(prefix := f"/{hub.name}/resolve/{hub.commit}/"):
                    self.send(path.removeprefix(prefix))
                else:
                    code = "RevisionNotFound" if hub.name in path else "RepoNotFound"
                    self.answer(404, b"{}", {"X-Error-Code": code})

            def send(self, file: str) -> None:
                content = hub.files[file]
                headers = {"ETag": f'"{hub._sha256(file)}"', "X-Repo-Commit": hub.commit}
                if file in hub.wrong:
                    content = bytes(len(content))
                if file in hub.cut and self.command == "GET":
                    self.answer(200, content, headers, stop_after=len(content) // 2)
                else:
                    self.answer(200, content, headers)

            def answer(
                self, status: int, content: bytes, headers: dict[str, str] | None = None, stop_after: int | None = None
            ) -> None:
                self.send_response(status)
                for key, value in (headers or {}).items():
                    self.send_header(key, value)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                if self.command == "GET":
                    self.wfile.write(content[:stop_after])
                if stop_after is not None:
                    self.close_connection = True

        return Handler
