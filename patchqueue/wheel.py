"""Repacking a donor wheel with the files that the patches change."""

import base64
import csv
import hashlib
import io
import re
import zipfile
from collections.abc import Mapping
from pathlib import Path

from patchqueue.errors import QueueError

# The oldest time a zip file can hold: the same bytes whenever a wheel is built.
_TIME = (1980, 1, 1, 0, 0, 0)


def repack(
    donor: Path,
    project: str,
    version: str,
    changes: Mapping[str, bytes | None],
    folder: Path,
) -> Path:
    """Write `donor` as `project` `version`, with `changes` laid over its files.

    Compiled files, tags, entry points and dependencies stay the donor's.

    Args:
        donor: the wheel to start from.
        project: the distribution's name in the new wheel.
        version: its version, local part included.
        changes: new content by path in the wheel; None removes the file.
        folder: where the new wheel goes.

    Returns:
        The path of the wheel. The same input gives the same bytes.
    """
    old_name, old_version, tags = donor.stem.split("-", 2)
    old_info = f"{old_name}-{old_version}.dist-info"
    new_info = f"{project}-{version}.dist-info"
    files: dict[str, bytes | zipfile.ZipInfo] = {}
    path = folder / f"{project}-{version}-{tags}.whl"
    with zipfile.ZipFile(donor) as source:
        for member in source.infolist():
            name = re.sub(rf"^{re.escape(old_info)}/", f"{new_info}/", member.filename)
            files[name] = member
        for name, content in changes.items():
            if content is None:
                del files[name]
            else:
                files[name] = content
        metadata = source.read(f"{old_info}/METADATA")
        files[f"{new_info}/METADATA"] = _renamed(metadata, project, version)
        files.pop(f"{new_info}/RECORD")
        _write(path, files, source, f"{new_info}/RECORD")
    return path


def _renamed(metadata: bytes, project: str, version: str) -> bytes:
    """The METADATA file under another name and version."""
    head, blank, body = metadata.partition(b"\n\n")
    head = re.sub(rb"^Name: .*$", f"Name: {project}".encode(), head, flags=re.MULTILINE)
    head = re.sub(rb"^Version: .*$", f"Version: {version}".encode(), head, flags=re.MULTILINE)
    return head + blank + body


def _write(
    path: Path,
    files: Mapping[str, bytes | zipfile.ZipInfo],
    source: zipfile.ZipFile,
    record_name: str,
) -> None:
    part = path.with_suffix(".part")
    rows = []
    with zipfile.ZipFile(part, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as target:
        for name, content in files.items():
            mode = content.external_attr if isinstance(content, zipfile.ZipInfo) else 0o100644 << 16
            data = source.read(content) if isinstance(content, zipfile.ZipInfo) else content
            _add(target, name, data, mode)
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=")
            rows.append((name, f"sha256={digest.decode()}", str(len(data))))
        table = io.StringIO()
        csv.writer(table, lineterminator="\n").writerows([*rows, (record_name, "", "")])
        _add(target, record_name, table.getvalue().encode(), 0o100644 << 16)
    part.rename(path)


def _add(target: zipfile.ZipFile, name: str, data: bytes, mode: int) -> None:
    info = zipfile.ZipInfo(name, _TIME)
    info.external_attr = mode
    info.compress_type = zipfile.ZIP_DEFLATED
    target.writestr(info, data)


def laid_over(
    donor: Path, base: Mapping[str, bytes | None], patched: Mapping[str, bytes | None]
) -> Mapping[str, bytes | None]:
    """Check that the donor holds the very files that the patches were made for.

    Args:
        donor: the wheel to be repacked.
        base: the content of every changed file before the series, None where new.
        patched: the content after it, None where deleted.

    Returns:
        `patched`.

    Raises:
        QueueError: the donor has another version of a changed file.
    """
    with zipfile.ZipFile(donor) as source:
        names = set(source.namelist())
        for name, content in base.items():
            found = source.read(name) if name in names else None
            if found != content:
                raise QueueError(
                    f"{donor.name} has another {name} than the pinned sdist, so a patch to it "
                    "cannot be repacked; change the patch, or pin another donor"
                )
    return patched
