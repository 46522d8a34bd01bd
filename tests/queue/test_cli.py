import errno
import subprocess
import sys
from pathlib import Path

import pytest

from patchqueue import __main__ as cli
from patchqueue.layout import Layout

ROOT = Path(__file__).parents[2]


def test_an_old_python_is_named() -> None:
    code = "import sys; sys.version_info = (3, 10, 1, 'final', 0); import patchqueue"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert done.stderr.startswith("error: the queue needs Python 3.11 or newer, and this is 3.10")


def test_an_error_is_one_message_and_status_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["apply"]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: ")
    assert "pins.lock is missing" in captured.err


def test_a_full_disk_is_one_message(
    empty: Layout, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(_: Layout) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.chdir(empty.root)
    monkeypatch.setattr(cli, "apply", full)
    assert cli.main(["apply"]) == 1
    assert capsys.readouterr().err.startswith("error: no space is left on the disk of ")


def test_apply_and_export_say_what_they_did(
    queue: Layout, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(queue.root)
    assert cli.main(["apply"]) == 0
    assert "work/vllm: vllm 0.32.0 + engine-fix" in capsys.readouterr().out
    assert cli.main(["export"]) == 0
    assert capsys.readouterr().out == "patches/ and series are up to date\n"
    assert cli.main(["lint"]) == 0
