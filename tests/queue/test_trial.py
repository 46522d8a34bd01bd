"""Where a trial takes compiled and generated files from."""

import zipfile
from pathlib import Path

import pytest

from patchqueue import git
from patchqueue.trial import run_tests

TEST = """from pathlib import Path

def test_built_files():
    assert [f.name for f in Path("lmcache").glob("*_pb2.py")] == ["{}_pb2.py"]
"""


@pytest.mark.parametrize("source", ["wheel", "installed"])
def test_built_files_come_from_one_release(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree, site, wheel = tmp_path / "tree", tmp_path / "site", tmp_path / "donor.whl"
    for file, text in {
        tree / "lmcache" / "__init__.py": "",
        tree / "tests" / "test_built.py": TEST.format(source),
        site / "lmcache" / "__init__.py": "",
        site / "lmcache" / "installed_pb2.py": "",
    }.items():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("lmcache/wheel_pb2.py", "")
    monkeypatch.syspath_prepend(site)
    git.output(tree, "init", "--quiet")
    git.output(tree, "add", "--all")
    git.output(tree, "commit", "--quiet", "-m", "base")
    donor = wheel if source == "wheel" else None
    trial = run_tests(tree, "HEAD", "lmcache", ["tests/test_built.py"], donor)
    assert trial.passed, str(trial)
