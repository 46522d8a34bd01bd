"""A running vLLM and LMCache server that somebody else started."""

from dataclasses import dataclass

from qualify.profiles import Profile
from qualify.recorder import Recorder


@dataclass(frozen=True)
class Given:
    """Where they answer, and how many ranks there are."""

    engine_url: str
    server_url: str
    ranks: int


def run_against(given: Given, recorder: Recorder, profile: Profile) -> None:
    """Run what is possible."""
    raise NotImplementedError(given, recorder, profile)
