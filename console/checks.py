"""What doctor looks at in a cluster. Each check answers with findings; one that cannot be made says so
itself.
"""

from __future__ import annotations

import ssl
import threading
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from confluent_kafka import IsolationLevel

from perdure.connectors.broker_version import VersionUnknown, features_of
from perdure.connectors.client import Client
from perdure.connectors.settings import Settings
from perdure.console.findings import Finding, Level, note, ok, problem, warning
from perdure.console.group_checks import groups
from perdure.console.patient import TIMEOUT_S, Patient, all_partitions, end_offsets, newest_records
from perdure.console.timeline import excerpt
from perdure.schemas.codec import Tombstone, Undecodable, codec_of
from perdure.schemas.errors import PerdureError
from perdure.schemas.outputs import DeadLetter
from perdure.schemas.registry import BY_TOPIC
from perdure.topics import provision
from perdure.topics.kafka_admin import answer
from perdure.topics.kafka_provision import KafkaProvision
from perdure.topics.log import GroupProtocol
from perdure.topics.provision import Advice, AlterTopic, PartitionsDiffer
from perdure.topics.table import DEAD_LETTERS, TOPICS

LOOK_S: Final = 1.0
# Topics that others write too: what cannot be decoded there goes to dead-letters and harms nobody.
OTHERS_WRITE: Final = frozenset({"run-commands", "run-results", "agent-definitions"})
HANGING_REMEDY: Final = (
    "See who it is: kafka-transactions --bootstrap-server {bootstrap} describe-producers --topic {topic} "
    "--partition {partition}, then `list` for its state. CompleteCommit: write the COMMIT marker "
    "(WriteTxnMarkers), never `abort`, which would lose a committed record. CompleteAbort or unknown: "
    "`abort --topic {topic} --partition {partition} --start-offset N` before any producer with that "
    "transactional id starts again."
)


def examined(patient: Patient) -> list[Finding]:
    """All checks in turn; without a broker only the first."""
    findings = guarded("broker", lambda: broker(patient))
    if any(each.check == "broker" and each.level is Level.PROBLEM for each in findings):
        return findings
    for name, check in (
        ("topics", topics),
        ("groups", groups),
        ("transactions", transactions),
        ("schemas", schemas),
        ("dead-letters", dead_letters),
        ("runs", runs),
    ):
        findings += guarded(name, partial(check, patient))
    return findings


def guarded(name: str, check: Callable[[], list[Finding]]) -> list[Finding]:
    """A check that cannot be made is a finding, and keeps no other from being made."""
    try:
        return check()
    except PerdureError as error:
        return [problem(name, str(error.args[0]), error.remedy)]


def broker(patient: Patient) -> list[Finding]:
    """Is it there, is it a Kafka perdure is right on, and does it know KIP-848 groups?"""
    untyped: Any = patient.admin
    cluster: Any = answer(untyped.describe_cluster(request_timeout=TIMEOUT_S), TIMEOUT_S)
    nodes: list[Any] = list(cluster.nodes or ())
    findings = [
        ok("broker", f"{patient.settings.bootstrap}: cluster {cluster.cluster_id}, {len(nodes)} broker(s).")
    ]
    findings += [_version(patient.settings, str(node.host), int(node.port)) for node in nodes]
    if patient.log.consumer_protocol() is not GroupProtocol.CONSUMER:
        findings.append(
            note(
                "broker", "No KIP-848 groups: executors use cooperative-sticky, which moves work more slowly."
            )
        )
    return findings


def _version(settings: Settings, host: str, port: int) -> Finding:
    try:
        found = features_of(host, port, tls=_tls(settings))
    except VersionUnknown as error:
        return note("version", str(error.args[0]), error.remedy)
    text = f"{host}:{port} is Kafka {found.release}."
    if found.is_too_old:
        return problem("version", text, "Use Kafka 4.0 to 4.2.")
    if found.is_doubtful:
        return warning(
            "version",
            f"{text} It may be one of 4.3.0-4.3.2 and 4.4.0, which can freeze a partition for ever when a "
            f"broker "
            "restarts (KAFKA-20734); patch levels are not visible.",
            "Use Kafka 4.2, or a release that mends KAFKA-20734; with three replicas it was not seen.",
        )
    return ok("version", text)


def _tls(settings: Settings) -> ssl.SSLContext | None:
    if "SSL" not in str(settings.kafka.get("security.protocol", "")).upper():
        return None
    authority = settings.kafka.get("ssl.ca.location")
    return ssl.create_default_context(cafile=str(authority) if authority else None)


def topics(patient: Patient) -> list[Finding]:
    """Are they all there, with the right counts and settings, and do the groups have their offsets?"""
    settings = patient.settings
    admin = KafkaProvision(patient.log.admin)
    try:
        changes = provision.plan(
            admin, patient.namespace, settings.partitions, settings.replication, TIMEOUT_S
        )
    except PartitionsDiffer as error:
        return [problem("topics", str(error.args[0]), error.remedy)]
    findings: list[Finding] = []
    for change in changes:
        match change:
            case Advice():
                findings.append(warning("topics", f"{change.subject}: {change.text}", "Do what it says."))
            case AlterTopic():
                findings.append(warning("topics", change.describe(), "Run `perdure topics apply`."))
            case _:
                findings.append(
                    problem("topics", f"Missing: {change.describe()}", "Run `perdure topics apply`.")
                )
    return findings or [
        ok("topics", f"{len(TOPICS)} topics as they should be, {settings.partitions} partitions.")
    ]


def transactions(patient: Patient) -> list[Finding]:
    """Partitions whose last stable offset stands still below their end: a transaction hangs."""
    at = all_partitions(patient)
    stable = end_offsets(patient.admin, at, IsolationLevel.READ_COMMITTED)
    ends = end_offsets(patient.admin, at, IsolationLevel.READ_UNCOMMITTED)
    open_ = [each for each in at if stable[each] < ends[each]]
    until_s = patient.clock.boot_s() + patient.patience_s
    pause = threading.Event()
    while open_ and patient.clock.boot_s() < until_s:
        pause.wait(LOOK_S)
        now = end_offsets(patient.admin, open_, IsolationLevel.READ_COMMITTED)
        open_ = [each for each in open_ if now[each] == stable[each]]
    if not open_:
        return [ok("transactions", f"None hangs ({len(at)} partitions).")]
    return [
        problem(
            "transactions",
            f"{each.topic}/{each.partition}: committed readers end at {stable[each]} of {ends[each]} and "
            f"did not move "
            f"for {patient.patience_s:.0f} s: a transaction hangs.",
            HANGING_REMEDY.format(
                bootstrap=patient.settings.bootstrap, topic=each.topic, partition=each.partition
            ),
        )
        for each in open_
    ]


def schemas(patient: Patient) -> list[Finding]:
    """Can this version read the newest records of every topic?"""
    findings: list[Finding] = []
    count = 0
    for spec in TOPICS:
        bad: Counter[str] = Counter()
        codec = codec_of(BY_TOPIC[spec.name].type)
        for record in newest_records(patient, spec.name):
            count += 1
            try:
                codec.decode(record.value)
            except Tombstone:
                continue
            except Undecodable as error:
                bad[error.code] += 1
        if bad:
            told = ", ".join(f"{number} {code}" for code, number in sorted(bad.items()))
            text = f"{spec.name}: of the newest records, {told}."
            if spec.name in OTHERS_WRITE:
                findings.append(
                    note("schemas", text, "Others wrote them; they are set aside, see dead-letters.")
                )
            else:
                findings.append(
                    problem("schemas", text, "Upgrade this perdure, or report it: only perdure writes here.")
                )
    return findings or [ok("schemas", f"The newest {count} records can be read.")]


def dead_letters(patient: Patient) -> list[Finding]:
    """What was set aside lately, by reason."""
    found: Counter[str] = Counter()
    last = ""
    for record in newest_records(patient, DEAD_LETTERS):
        try:
            letter = codec_of(DeadLetter).decode(record.value)
        except Undecodable as error:
            found[error.code] += 1
            continue
        assert isinstance(letter, DeadLetter)
        found[letter.code] += 1
        last = f"{letter.source}: {letter.reason}"
    if not found:
        return [ok("dead-letters", "None.")]
    told = ", ".join(f"{number} {code}" for code, number in found.most_common())
    return [
        note(
            "dead-letters", f"Of the newest: {told}. The last: {excerpt(last, 200)}", "Look at who sent them."
        )
    ]


def runs(patient: Patient) -> list[Finding]:
    """How many there are in which state, and whether a history is damaged."""
    with Client(patient.settings, log=patient.log, clock=patient.clock) as client:
        found = client.runs()
    damaged = [each for each in found if each.code == "quarantined"]
    states = Counter(each.state.value for each in found)
    told = ", ".join(f"{number} {state}" for state, number in states.most_common()) or "none"
    findings = [ok("runs", f"{len(found)} run(s): {told}.")]
    findings += [
        problem(
            "runs",
            f"Run {each.run_id} is quarantined: {excerpt(each.waiting_for or '', 200)}",
            "Its history in run-events is damaged; nothing of it is skipped. Restore the topic, or give the "
            "run up.",
        )
        for each in damaged
    ]
    return findings
