"""Batches that can not be committed although broker and membership are well: find the one input at fault.

After ``aborts_before_bisecting`` aborts in a row the batch is halved, and so on down to one input. Before
that one is condemned, a transaction with nothing but offsets has to commit and the input has to fail once
more: so trouble of the connection, whatever the client calls it, never costs an input.
"""

from __future__ import annotations

from enum import Enum

from perdure.processors.orchestrator.settings import OrchestratorSettings


class Verdict(Enum):
    """What to do after an abort."""

    AGAIN = "again"  # the same, or what ``size`` leaves of it
    PROBE = "probe"  # see whether a transaction without the input commits
    CONDEMN = "condemn"  # the input is at fault


class Suspicion:
    """``size``: how many inputs the next batch may have; None: as many as there are."""

    def __init__(self, settings: OrchestratorSettings) -> None:
        self._settings = settings
        self._aborts = 0
        self._is_probed = False
        self.size: int | None = None

    def aborted(self, inputs: int) -> Verdict:
        """A batch of ``inputs`` was aborted."""
        self._aborts += 1
        if self._aborts < self._settings.aborts_before_bisecting:
            return Verdict.AGAIN
        if inputs > 1:
            self.size = (inputs + 1) // 2
            self._aborts = 0
            return Verdict.AGAIN
        if inputs == 0:
            return Verdict.AGAIN
        self.size = 1
        return Verdict.CONDEMN if self._is_probed else Verdict.PROBE

    def probed(self) -> None:
        """A transaction without the suspect has committed."""
        self._is_probed = True

    def committed(self) -> None:
        """A batch has committed: what it held is not at fault; the rest is taken in growing pieces again."""
        self._aborts = 0
        self._is_probed = False
        if self.size is not None:
            self.size *= 2
            if self.size >= self._settings.batch_inputs_max:
                self.size = None
