"""The tests run against this repository's wheels, not against upstream's."""

import sys

import pytest

from tests.integration.wheels import LOCAL_PART, installed_versions


@pytest.mark.parametrize("package", ["lmcache", "vllm"])
def test_the_installed_wheel_is_ours(package: str) -> None:
    versions = list(installed_versions(package).values())

    assert [LOCAL_PART in version for version in versions] == [True], (
        f"{package} in {sys.prefix}: {versions or 'not installed'}; expected one"
        f" version with {LOCAL_PART}: run `nox -s build`, then install the wheels"
        " from dist/"
    )
