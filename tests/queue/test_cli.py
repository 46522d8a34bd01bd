import errno
import subprocess
import sys
from pathlib import Path

import pytest

from patchqueue import __main__ as cli
from patchqueue.layout import CACHE_VARIABLE, Layout
from tests.queue.index import Index
from tests.queue.synthetic import release

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


def test_a_rebase_from_the_command_line(
    queue: Layout, index: Index, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(queue.root)
    assert cli.main(["rebase"]) == 1
    assert "no rebase is in progress; `nox -s rebase -- vllm==X" in capsys.readouterr().err
    release(index, "vllm", "0.33.0", {"README.md": "newer\n"})
    assert cli.main(["rebase", "vllm==0.33.0"]) == 0
    shown = capsys.readouterr().out
    assert "| vllm/engine-fix.patch | clean |  | not run |" in shown
    assert "`-- --accept` commits them with" in shown
    assert cli.main(["rebase"]) == 0
    assert capsys.readouterr().out == shown
    assert cli.main(["rebase", "vllm==0.33.0", "--continue"]) == 1
    assert "--continue takes no releases" in capsys.readouterr().err
    assert cli.main(["rebase", "--abort"]) == 0
    assert "as they were" in capsys.readouterr().out


def test_an_abort_says_what_an_accept_has_left(
    queue: Layout, index: Index, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(queue.root)
    release(index, "vllm", "0.33.0", {"README.md": "newer\n"})
    assert cli.main(["rebase", "vllm==0.33.0"]) == 0
    queue.series.write_text(queue.series.read_text() + "# Another heading\n")
    assert cli.main(["rebase", "--abort"]) == 0
    shown = capsys.readouterr().out
    assert "since it began series changed. `git status`" in shown
    assert "as they were" not in shown


def test_two_releases_of_one_upstream_are_refused(
    queue: Layout, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(queue.root)
    assert cli.main(["rebase", "vllm==0.33.0", "vllm==0.34.0"]) == 1
    assert "two releases are named for vllm, 0.33.0 and 0.34.0" in capsys.readouterr().err


def test_a_cache_that_cannot_be_written_to_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "file" / "cache"))
    assert cli.main(["status"]) == 1
    shown = capsys.readouterr().err
    assert "file/cache cannot be written to (Not a directory); set BOUNDED_RESTORE_CACHE" in shown


def test_status_and_pin_check_print_and_write_nothing(
    queue: Layout, index: Index, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(queue.root)
    before = queue.pins.read_bytes()
    assert cli.main(["status"]) == 0
    assert "3 patches" in capsys.readouterr().out
    assert cli.main(["pin", "--check"]) == 0
    assert "lmcache 0.5.6 is the newest release" in capsys.readouterr().out
    assert queue.pins.read_bytes() == before
    assert cli.main(["pin", "--check", "vllm==0.33.0"]) == 1
    assert "--check takes no releases" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [[], ["first-fix", "--all"]])
def test_upstream_wants_one_patch_or_all(
    queue: Layout,
    arguments: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(queue.root)
    assert cli.main(["upstream", *arguments]) == 1
    assert capsys.readouterr().err == "error: name one patch, or --all for a table\n"
