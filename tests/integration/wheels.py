"""Which wheels the tests run against."""

from importlib import metadata

LOCAL_PART = "+bsr."


def installed_versions(package: str) -> dict[str, str]:
    """Return the distributions that bring an importable package, with versions.

    There should be one. Its name may differ: vLLM for CPUs is not called vllm.
    """
    distributions = set(metadata.packages_distributions().get(package, []))
    return {name: metadata.version(name) for name in sorted(distributions)}
