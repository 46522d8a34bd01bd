"""A running LMCache server, whoever started it, as it answers over HTTP."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.integration.prometheus import Metrics, parse_metrics
from tests.integration.waiting import Steady, wait_until
from tests.integration.webclient import WebClient

RELEASE_SECONDS = 30.0
EVENT_SECONDS = 30.0
EVENT_POLLS = 3


@dataclass(frozen=True)
class L1State:
    """What /status says about the server's L1."""

    used_bytes: int
    read_locks: int
    write_locks: int
    staging_bytes: int


class ServerApi:
    """What a server says about itself, and the little that it can be asked to do."""

    def __init__(self, base: str, explain: Callable[[], str] = lambda: "") -> None:
        """Talk to the server at an address; explain() adds to what failures say."""
        self._web = WebClient(base)
        self._explain = explain

    @property
    def url(self) -> str:
        """Where it answers."""
        return self._web.base

    def ready(self) -> bool:
        """Tell whether the server answers and is healthy."""
        return self._web.answers("/healthcheck")

    def status(self) -> dict[str, Any]:
        """Return /status."""
        return self._web.get_json("/status")

    def storage_status(self) -> dict[str, Any]:
        """Return the part of /status about L1, L2 and their controllers."""
        storage: dict[str, Any] = self.status()["storage_manager"]
        return storage

    def metrics(self) -> Metrics:
        """Return /metrics."""
        return parse_metrics(self._web.get_text("/metrics"))

    def settled_metrics(self) -> Metrics:
        """Return /metrics once they count everything that has happened so far."""
        calm = Steady(EVENT_POLLS)
        wait_until(
            lambda: calm.holds(condition=self._waiting_events() == 0, value=None),
            "the server has counted its events",
            seconds=EVENT_SECONDS,
            explain=self._explain,
        )
        return self.metrics()

    def l1(self) -> L1State:
        """Return what L1 holds, summed over all L1 managers."""
        managers = self.storage_status()["l1_managers"].values()
        return L1State(
            used_bytes=sum(each["memory_used_bytes"] for each in managers),
            read_locks=sum(each["read_locked_count"] for each in managers),
            write_locks=sum(each["write_locked_count"] for each in managers),
            staging_bytes=sum(each["staging_bytes"] for each in managers),
        )

    def restore_peak_bytes(self) -> int:
        """Return the most bytes that restores have staged in L1 so far."""
        peak: int = self.storage_status()["restore"]["peak_staging_bytes"]
        return peak

    def restores(self) -> Counter[str]:
        """Return how many restores have ended, by outcome."""
        return Counter(self.storage_status()["restore"]["outcomes"])

    def l1_capacity_bytes(self) -> int:
        """Return the size of L1, summed over all its backends."""
        return sum(self.storage_status()["l1_capacity_bytes_by_backend"].values())

    def clear_l1(self) -> None:
        """Remove what nobody has locked from L1."""
        self._web.post_json("/cache/clear", {"tier": "l1", "force": False})

    def stores_settled(self) -> bool:
        """Tell whether no store is under way."""
        controllers = self.storage_status()["store_controllers"].values()
        waiting = sum(
            each["pending_keys_count"] + each["in_flight_task_count"] for each in controllers
        )
        l1 = self.l1()
        return waiting == 0 and l1.read_locks == 0 and l1.write_locks == 0

    def wait_released(self) -> None:
        """Wait until nothing of a store or a restore is left in an emptied L1."""
        wait_until(
            lambda: self.l1() == L1State(0, 0, 0, 0),
            "L1 holds no bytes and no locks",
            seconds=RELEASE_SECONDS,
            explain=lambda: f"{self.l1()}\n{self._explain()}",
        )

    def _waiting_events(self) -> int:
        return int(self.metrics().total("lmcache_mp_event_bus_queue_depth"))
