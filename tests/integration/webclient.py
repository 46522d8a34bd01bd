"""A small HTTP client for processes on this machine. It ignores proxies."""

import http.client
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlsplit

Json = dict[str, Any]

PROBE_SECONDS = 5.0


class HttpError(AssertionError):
    """A server answered with something other than 200."""


@dataclass(frozen=True)
class WebClient:
    """Requests to one base address such as http://127.0.0.1:8080."""

    base: str
    timeout_seconds: float = 300.0

    def get_text(self, path: str) -> str:
        """GET path and return the body."""
        return self._request("GET", path, None)

    def get_json(self, path: str) -> Json:
        """GET path and return its JSON object."""
        return _as_object(self.get_text(path))

    def post_json(self, path: str, body: Json | None = None) -> Json:
        """POST body as JSON to path and return the JSON object of the answer."""
        return _as_object(self._request("POST", path, json.dumps(body or {})))

    @contextmanager
    def given_up_post(self, path: str, body: Json) -> Iterator[None]:
        """POST body as JSON to path, and hang up when the with block ends."""
        connection = self._send("POST", path, json.dumps(body))
        try:
            yield
        finally:
            connection.close()

    def answers(self, path: str) -> bool:
        """Tell whether GET path is answered with 200, and soon."""
        hasty = replace(self, timeout_seconds=PROBE_SECONDS)
        try:
            hasty.get_text(path)
        except (OSError, http.client.HTTPException, HttpError):
            return False
        return True

    def _request(self, method: str, path: str, body: str | None) -> str:
        connection = self._send(method, path, body)
        try:
            answer = connection.getresponse()
            text = answer.read().decode("utf-8", errors="replace")
        finally:
            connection.close()
        if answer.status != http.HTTPStatus.OK:
            raise HttpError(f"{method} {self.base}{path}: {answer.status} {text}")
        return text

    def _send(self, method: str, path: str, body: str | None) -> http.client.HTTPConnection:
        address = urlsplit(self.base)
        connection = http.client.HTTPConnection(
            address.hostname or "", address.port, timeout=self.timeout_seconds
        )
        headers = {"Content-Type": "application/json"} if body else {}
        try:
            connection.request(method, path, body, headers)
        except BaseException:
            connection.close()
            raise
        return connection


def _as_object(text: str) -> Json:
    content = json.loads(text)
    if not isinstance(content, dict):
        raise HttpError(f"expected a JSON object, got: {text[:200]}")
    return content
