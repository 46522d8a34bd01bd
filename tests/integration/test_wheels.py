"""The tests run against this repository's wheels, and those install with plain pip."""

import email
import json
import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from tests.integration.wheels import LOCAL_PART, installed_versions

# What requirements/cpu.txt leaves out of the wheels' own requirements, and says why.
LEFT_OUT = {
    "awscrt",
    "cuda-python",
    "cufile-python",
    "cupy-cuda13x",
    "google-api-core",
    "google-cloud-bigtable",
    "nvtx",
    "torchaudio",
    "torchcodec",
    "torchvision",
}


@pytest.mark.parametrize("package", ["lmcache", "vllm"])
def test_the_installed_wheel_is_ours(package: str) -> None:
    versions = list(installed_versions(package).values())

    assert [LOCAL_PART in version for version in versions] == [True], (
        f"{package} in {sys.prefix}: {versions or 'not installed'}; expected one"
        f" version with {LOCAL_PART}: run `nox -s build`, then install the wheels"
        " from dist/"
    )


def test_requirements_are_met_but_for_those_left_out() -> None:
    check = subprocess.run(
        [sys.executable, "-m", "pip", "check"], capture_output=True, text=True, check=False
    )
    missing = {
        line.split(" requires ")[1].split(",")[0]
        for line in check.stdout.splitlines()
        if " requires " in line
    }
    assert missing <= LEFT_OUT, check.stdout
    assert "has requirement" not in check.stdout.replace("has requirement torch==", ""), (
        check.stdout
    )


def test_vllm_picks_its_cpu_platform() -> None:
    code = (
        "import lmcache, vllm\n"
        "from vllm.platforms import current_platform\n"
        "print(current_platform.device_type)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.splitlines()[-1:] == ["cpu"], done.stderr


@pytest.mark.parametrize("command", ["lmcache", "vllm"])
def test_the_commands_are_there(command: str) -> None:
    done = subprocess.run(
        [Path(sys.executable).with_name(command), "--help"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "usage" in done.stdout.lower()


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh environment with nothing but the two wheels, and its Python."""
    folder = Path(os.environ["BOUNDED_RESTORE_DIST"])
    place = tmp_path_factory.mktemp("fresh")
    venv.create(place, with_pip=True)
    python = place / "bin/python"
    wheels = sorted(str(path) for path in folder.glob("*.whl"))
    assert len(wheels) == 2, f"{folder} holds {wheels}, not two wheels"
    install = [str(python), "-m", "pip", "install", "--quiet", "--no-deps", *wheels]
    subprocess.run(install, check=True)
    return python


def test_pip_reads_their_metadata(fresh: Path) -> None:
    listing = [str(fresh), "-m", "pip", "list", "--format=json"]
    found = {
        entry["name"]: entry["version"] for entry in json.loads(subprocess.check_output(listing))
    }
    assert {name for name, version in found.items() if LOCAL_PART in version} == {
        "lmcache",
        "vllm",
    }


@pytest.mark.parametrize("package", ["lmcache", "vllm"])
def test_every_file_is_as_recorded(fresh: Path, package: str) -> None:
    code = (
        "import hashlib, base64, sys\n"
        "from importlib.metadata import files\n"
        "for f in files(sys.argv[1]):\n"
        "    if f.hash:\n"
        "        digest = hashlib.new(f.hash.mode, f.read_binary()).digest()\n"
        "        found = base64.urlsafe_b64encode(digest).rstrip(b'=').decode()\n"
        "        assert found == f.hash.value, f\n"
        "    assert f.locate().exists(), f\n"
    )
    subprocess.run([str(fresh), "-c", code, package], check=True)


def test_requirements_are_the_donors(fresh: Path) -> None:
    code = "from importlib.metadata import metadata; print(metadata('vllm').as_string())"
    text = subprocess.check_output([str(fresh), "-c", code], text=True)
    requirements = email.message_from_string(text).get_all("Requires-Dist") or []
    assert any(requirement.startswith("torch==2.13.0") for requirement in requirements)
