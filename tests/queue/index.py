"""A package index on the loopback interface, with faults on demand."""

import hashlib
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Index:
    """Files by project; the pages that pip asks for are made from them."""

    url: str = ""
    files: dict[str, dict[str, bytes]] = field(default_factory=dict)
    truncate_at: int | None = None
    ranges: bool = True
    served: dict[str, bytes] = field(default_factory=dict)
    requests: list[tuple[str, str | None]] = field(default_factory=list)

    def add(self, project: str, name: str, data: bytes) -> None:
        """Offer a file."""
        self.files.setdefault(project, {})[name] = data

    def page(self, project: str) -> bytes:
        """The page of a project; hashes are those of the files as added."""
        links = "".join(
            f'<a href="/files/{name}#sha256={hashlib.sha256(data).hexdigest()}">{name}</a>\n'
            for name, data in self.files[project].items()
        )
        return f"<!DOCTYPE html><html><body>{links}</body></html>".encode()

    def content(self, name: str) -> bytes:
        """What a download yields: `served` where set, else the file."""
        if name in self.served:
            return self.served[name]
        return next(files[name] for files in self.files.values() if name in files)


class _Handler(BaseHTTPRequestHandler):
    index: Index

    def do_GET(self) -> None:
        asked = self.headers.get("Range")
        self.index.requests.append((self.path, asked))
        _, kind, name, *_ = f"{self.path}//".split("/")
        if kind == "simple" and name in self.index.files:
            self._reply(200, self.index.page(name), "text/html")
        elif kind == "files":
            self._file(self.index.content(name), asked)
        else:
            self.send_error(404)

    def _file(self, data: bytes, asked: str | None) -> None:
        start = int(re.findall(r"\d+", asked)[0]) if asked and self.index.ranges else 0
        if start and start >= len(data):
            self.send_error(416)
            return
        self._reply(206 if start else 200, data[start:], "application/octet-stream")

    def _reply(self, status: int, data: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        broken = self.index.truncate_at is not None and kind != "text/html"
        self.wfile.write(data[: self.index.truncate_at] if broken else data)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def serve() -> Iterator[Index]:
    """Run an empty index."""
    index = Index()
    handler = type("Handler", (_Handler,), {"index": index})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        index.url = f"http://127.0.0.1:{server.server_port}/simple"
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield index
        server.shutdown()
