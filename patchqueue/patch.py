"""A patch file in StGit's native format, which `git am` reads too."""

import re
from dataclasses import dataclass

from patchqueue.errors import QueueError

NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
_DIFF = re.compile(r"^diff --git ", re.MULTILINE)
_TOUCHED = re.compile(r"^diff --git a/(?P<old>.+) b/(?P<new>.+)$", re.MULTILINE)


@dataclass(frozen=True)
class Patch:
    """One commit as a file: message, author, date and diff."""

    subject: str
    author: str
    date: str
    body: str
    diff: bytes

    def format(self) -> bytes:
        """The bytes of the patch file."""
        head = f"{self.subject}\n\nFrom: {self.author}\nDate: {self.date}\n\n"
        body = f"{self.body}\n---\n\n" if self.body else "---\n\n"
        return (head + body).encode() + self.diff

    @classmethod
    def parse(cls, data: bytes) -> "Patch":
        """Read a patch file.

        Raises:
            QueueError: the header is not in the form that `format` writes.
        """
        text = data.decode("utf-8", errors="surrogateescape")
        start = _DIFF.search(text)
        head, diff = (text[: start.start()], text[start.start() :]) if start else (text, "")
        found = re.fullmatch(
            r"(?P<subject>[^\n]+)\n\nFrom: (?P<author>[^\n]+)\nDate: (?P<date>[^\n]+)\n\n"
            r"(?:(?P<body>.*?)\n)?---\n\n",
            head,
            re.DOTALL,
        )
        if not found:
            raise QueueError(
                "the header is not 'subject, blank line, From:, Date:, blank line, "
                "body, ---, blank line'"
            )
        return cls(
            found["subject"],
            found["author"],
            found["date"],
            found["body"] or "",
            diff.encode("utf-8", errors="surrogateescape"),
        )

    def trailer(self, key: str) -> str | None:
        """The value of the body's paragraph that begins with `key:`, on one line."""
        for paragraph in re.split(r"\n\s*\n", self.body):
            for match in re.finditer(
                rf"^{re.escape(key)}: (.+?)(?=^[A-Z][\w-]*: |\Z)",
                paragraph,
                re.MULTILINE | re.DOTALL,
            ):
                return " ".join(match[1].split())
        return None

    def touched(self) -> list[str]:
        """The files that the diff changes, relative to the upstream tree."""
        text = self.diff.decode("utf-8", errors="surrogateescape")
        return sorted({match["new"].strip('"') for match in _TOUCHED.finditer(text)})


def slug(subject: str) -> str:
    """A patch name made from a commit's subject, its [tags] left out."""
    plain = re.sub(r"^(\[[^]]*\]\s*)+", "", subject).lower()
    name = re.sub(r"[^a-z0-9]+", "-", plain).strip("-").lstrip("0123456789-")
    return name[:60].rstrip("-") or "patch"
