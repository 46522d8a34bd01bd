"""The scheduler's half of a KV connector whose store answers as it is told."""

from dataclasses import dataclass
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1 import SupportsHMA
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
)
from vllm.v1.core.kv_cache_manager import KVCacheBlocks
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.request import Request


@dataclass
class Answers:
    """What the store says about one request."""

    hit_tokens: int = 0
    async_load: bool = True
    polls_before_hit: int = 0
    delays_free: bool = False


@dataclass(frozen=True)
class Load:
    """A load that the scheduler has asked for: the tokens from start to end."""

    request_id: str
    start: int
    end: int
    is_async: bool


@dataclass
class _Poll:
    local_tokens: int = 0
    async_load: bool = False


class ScriptedConnector(KVConnectorBase_V1, SupportsHMA):  # type: ignore[misc]
    """Advertises, for each request, the hit that `answers` holds for it.

    `new_loads` and `delayed` collect what the scheduler asked for; who reads
    them empties them.
    """

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        """Start without answers: nothing is stored."""
        super().__init__(*arguments, **keywords)
        self.answers: dict[str, Answers] = {}
        self.new_loads: list[Load] = []
        self.delayed: set[str] = set()
        self._polls: dict[str, _Poll] = {}

    def get_num_new_matched_tokens(
        self, request: Request, num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        """Return what the store holds beyond the local tokens."""
        answers = self.answers[request.request_id]
        if answers.polls_before_hit:
            answers.polls_before_hit -= 1
            return None, False
        external = max(answers.hit_tokens - num_computed_tokens, 0)
        load_async = answers.async_load and external > 0
        self._polls[request.request_id] = _Poll(num_computed_tokens, load_async)
        return external, load_async

    def update_state_after_alloc(
        self, request: Request, blocks: KVCacheBlocks, num_external_tokens: int
    ) -> None:
        """Note the load, if there is one."""
        if num_external_tokens:
            poll = self._polls[request.request_id]
            end = poll.local_tokens + num_external_tokens
            self.new_loads.append(Load(request.request_id, poll.local_tokens, end, poll.async_load))

    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> KVConnectorMetadata:
        """Return nothing: there are no workers."""
        return KVConnectorMetadata()

    def request_finished_all_groups(
        self, request: Request, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        """Keep the blocks for a save, if the script says so."""
        if not self.answers[request.request_id].delays_free:
            return False, None
        self.delayed.add(request.request_id)
        return True, None

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        """There is no worker."""
        raise NotImplementedError

    def wait_for_layer_load(self, layer_name: str) -> None:
        """There is no worker."""
        raise NotImplementedError

    def save_kv_layer(self, *arguments: Any, **keywords: Any) -> None:
        """There is no worker."""
        raise NotImplementedError

    def wait_for_save(self) -> None:
        """There is no worker."""
        raise NotImplementedError
