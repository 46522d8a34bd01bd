"""Pinned files into the cache: verified, resumed, and without network when they are there."""

import errno
import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pip._internal.models.link import Link
from pip._internal.network.utils import response_chunks
from pip._vendor.urllib3.exceptions import HTTPError
from tqdm import tqdm

from patchqueue.errors import QueueError
from patchqueue.index import Index, connect
from patchqueue.layout import CACHE_VARIABLE
from patchqueue.pins import Artifact


def fetch(cache: Path, artifacts: Iterable[Artifact]) -> list[Path]:
    """Bring every artifact into `cache` and return their paths.

    Raises:
        QueueError: a file cannot be had, or is not the pinned one.
    """
    wanted = list(artifacts)
    missing = [artifact for artifact in wanted if not cached(cache, artifact)]
    if missing:
        cache.mkdir(parents=True, exist_ok=True)
        with connect() as index:
            for artifact in missing:
                _download(cache, artifact, index)
    return [cache / artifact.name for artifact in wanted]


def cached(cache: Path, artifact: Artifact) -> bool:
    """Whether the cache holds the file.

    Raises:
        QueueError: it holds another file under this name.
    """
    path = cache / artifact.name
    if not path.is_file():
        return False
    found = sha256(path)
    if found != artifact.sha256:
        raise QueueError(
            f"{path} has sha256 {found}, but pins.lock says {artifact.sha256}. If pins.lock "
            f"is right, `rm '{path}'` and run this again"
        )
    return True


def sha256(path: Path) -> str:
    """The hex digest of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _download(cache: Path, artifact: Artifact, index: Index) -> None:
    link = index.locate(artifact.project, artifact.version, artifact.name)
    if link is None:
        raise QueueError(
            f"{artifact.name} is not in the cache ({cache}), and no package index that pip "
            "is configured for answers with it. Check the network and `pip config list`, "
            "then run this again"
        )
    part = cache / f"{artifact.name}.part"
    resumed = part.exists()
    _transfer(index.session, link, part)
    if resumed and sha256(part) != artifact.sha256:
        part.unlink()
        _transfer(index.session, link, part)
    found = sha256(part)
    if found != artifact.sha256:
        part.unlink()
        raise QueueError(
            f"the package index served {artifact.name} with sha256 {found}, but pins.lock "
            f"says {artifact.sha256}; nothing was kept. A mirror may be wrong (`pip config "
            "list`); if the release itself changed, `nox -s pin` writes new pins"
        )
    part.rename(cache / artifact.name)


def _transfer(session: Any, link: Link, part: Path) -> None:
    """Append what `part` still lacks, or start anew where the server cannot resume."""
    have = part.stat().st_size if part.is_file() else 0
    headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={have}-"} if have else {})
    try:
        with session.get(link.url_without_fragment, headers=headers, stream=True) as response:
            if response.status_code == 416:  # nothing is left to send
                return
            response.raise_for_status()
            _write(response, part, have if response.status_code == 206 else 0)
    except (OSError, HTTPError) as error:  # requests' errors are OSErrors
        raise QueueError(_interrupted(link, part, error)) from error


def _write(response: Any, part: Path, have: int) -> None:
    length = response.headers.get("Content-Length")
    total = have + int(length) if length else None
    with (
        part.open("ab" if have else "wb") as file,
        tqdm(
            desc=part.stem,
            initial=have,
            total=total,
            unit="B",
            unit_scale=True,
            mininterval=2,
            delay=2,
        ) as bar,
    ):
        for chunk in response_chunks(response):
            file.write(chunk)
            bar.update(len(chunk))
    if total is not None and (size := part.stat().st_size) < total:
        raise ConnectionError(f"the transfer ended at byte {size} of {total}")


def _interrupted(link: Link, part: Path, error: Exception) -> str:
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        return (
            f"no space is left in {part.parent} for {link.filename}. Free some, or set "
            f"{CACHE_VARIABLE} to a folder on another disk, and run this again: what has "
            "arrived is kept"
        )
    return (
        f"downloading {link.filename} broke off ({error}). Run this again: it resumes from {part}"
    )
