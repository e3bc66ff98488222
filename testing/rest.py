"""Is there anything left that happens by itself?"""

from __future__ import annotations

from collections.abc import Sequence

from perdure.processors.machine.state import CallPhase, Run
from perdure.processors.orchestrator.settings import OrchestratorSettings
from perdure.schemas.values import RunState
from perdure.testing.history import History
from perdure.testing.workers import Worker
from perdure.topics.log import Isolation, TopicPartition
from perdure.topics.model_cluster import ModelCluster
from perdure.topics.table import INPUTS, Role

NEEDS = {
    CallPhase.DISPATCHED: Role.TOOL_EXECUTOR,
    CallPhase.RECONCILING: Role.TOOL_EXECUTOR,
    CallPhase.REQUESTED: Role.ORCHESTRATOR,
    CallPhase.RETRY_WAIT: Role.ORCHESTRATOR,
    CallPhase.AMBIGUOUS: Role.ORCHESTRATOR,
    CallPhase.RECONCILE_WAIT: Role.ORCHESTRATOR,
}
"""Whose move it is in each phase of a call that is not over and not with a person."""


class Rest:
    """Looks at a whole bed. A wait for a role of which no worker lives is no disturbance."""

    def __init__(self, cluster: ModelCluster, history: History, settings: OrchestratorSettings) -> None:
        self._cluster = cluster
        self._history = history
        self._settings = settings
        self._ends: dict[TopicPartition, tuple[int, int]] = {}

    def disturbed_by(self, workers: Sequence[Worker]) -> str | None:
        """What still goes on, in words; None: nothing."""
        active = [worker for worker in workers if worker.is_alive and not worker.is_paused]
        living = {worker.role for worker in active}
        for worker in active:
            if worker.is_busy:
                return f"the {worker.role.value} {worker.slot} has calls"
        if Role.ORCHESTRATOR not in living:
            return None  # nobody hears what the others say
        if self._has_unread():
            return "the orchestrator has inputs that are not answered"
        for run in self._history.runs.values():
            role = whose_move(run)
            if role in living:
                return f"run {run.run_id}, {run.state}, waits for the {role.value}"
        return None

    def _has_unread(self) -> bool:
        for name in INPUTS[Role.ORCHESTRATOR]:
            topic = self._settings.namespace.topic(name)
            for number in range(self._cluster.partition_count(topic)):
                at = TopicPartition(topic, number)
                found = self._cluster.groups.fetch(self._settings.group, [at])
                committed = 0 if not found or found[0].offset is None else found[0].offset
                if committed < self._end(at):
                    return True
        return False

    def _end(self, at: TopicPartition) -> int:
        """The offset after the last record that a reader sees (markers take offsets too)."""
        end = self._cluster.partition(at).end_for(Isolation.COMMITTED)
        known = self._ends.get(at)
        if known is None or known[0] != end:
            records = self._cluster.visible(at.topic, at.partition)
            known = self._ends[at] = (end, records[-1].offset + 1 if records else 0)
        return known[1]


def whose_move(run: Run) -> Role | None:
    """The role that has to do something next; None: nobody, until a person or a distant instant."""
    if run.state.is_terminal or run.state is RunState.QUEUED:
        return None
    if run.model is not None:
        return Role.MODEL_CALLER if run.model.retry_at_ms is None else Role.ORCHESTRATOR
    needs = {NEEDS[call.phase] for call in run.calls if call.phase in NEEDS}
    if not needs:  # a child's move is its own
        waits = run.state is RunState.AWAITING_APPROVAL or run.children
        return None if waits else Role.ORCHESTRATOR
    return Role.ORCHESTRATOR if Role.ORCHESTRATOR in needs else Role.TOOL_EXECUTOR
