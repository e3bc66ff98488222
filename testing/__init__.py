"""The test kit: agents in process, with a scripted model, under virtual time.

The orchestrator, the executors and the roles are those of production; the log is the model log, which keeps
Kafka's promises and has no broker. See docs/TESTING.md.
"""

from perdure.testing.bed import NotAtRest, TestBed
from perdure.testing.history import BrokenPromise
from perdure.testing.run import TestRun
from perdure.testing.script import (
    Asked,
    Entry,
    Failure,
    Reply,
    ScriptedModel,
    ScriptExhausted,
    Silence,
    Use,
    calls,
    fails,
    says,
    use,
)
from perdure.testing.transcript import InvalidTranscript, check_transcript, transcript_fault
from perdure.testing.workers import Died

__all__ = [
    "Asked",
    "BrokenPromise",
    "Died",
    "Entry",
    "Failure",
    "InvalidTranscript",
    "NotAtRest",
    "Reply",
    "ScriptExhausted",
    "ScriptedModel",
    "Silence",
    "TestBed",
    "TestRun",
    "Use",
    "calls",
    "check_transcript",
    "fails",
    "says",
    "transcript_fault",
    "use",
]
