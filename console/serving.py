"""The life of a worker process: wait for the broker, take slots, run the roles, drain, end or start anew.

A role whose membership is tainted, or whose clients are broken, asks for a new process: the worker drains the
others and becomes a new process in place (same process id, nothing else kept). SIGTERM and SIGINT drain:
nothing more is started, what runs ends, offsets are committed. A second signal leaves at once.
"""

from __future__ import annotations

import logging
import os
import queue
import signal
import sys
import threading
from collections.abc import Mapping
from functools import partial
from types import FrameType
from typing import Final, NoReturn

from perdure.connectors.agent import load_app
from perdure.connectors.settings import Settings
from perdure.console.logs import start_logging
from perdure.console.roles import Means, Stopping, check_role, run_role
from perdure.console.session import exit_code_of
from perdure.console.slots import Slot, SlotUnusable, take_slot
from perdure.processors.clock import Entropy, SystemClock, SystemEntropy
from perdure.processors.definitions import DefinitionBook, publish
from perdure.processors.executor.exits import Exit
from perdure.processors.orchestrator.host import SlotTaken
from perdure.processors.ports import ModelPort
from perdure.schemas.errors import PerdureError, Retry, Stop
from perdure.topics.errors import ClientFatal
from perdure.topics.kafka_log import KafkaLog
from perdure.topics.log import Log
from perdure.topics.provision import PartitionsDiffer
from perdure.topics.table import RUN_COMMANDS, Namespace, Role

RESTART_DELAY_S: Final = 1.0
# The kernel may hand a signal to another thread (it does so to a process that was just continued), which does
# not wake the one that runs Python's handlers: it has to look.
SIGNAL_LOOK_S: Final = 0.5
BROKER_LOOK_S: Final = 2.0
BROKER_TIMEOUT_S: Final = 5.0
TOKEN_KEY_BYTES: Final = 32
FIRST_FILE_BEYOND_STDERR: Final = 3
EXIT_CRASHED: Final = 1
RESTARTS: Final = frozenset(each.value for each in Exit if each is not Exit.ASKED)

_log: Final = logging.getLogger(__name__)


class TopicsMissing(Stop):
    """The topics of perdure are not there."""

    code = "topics_missing"
    remedy = "Make them with `perdure topics apply`, or check bootstrap and namespace."


def run_worker(settings: Settings, roles: tuple[Role, ...], model: ModelPort | None = None) -> int:
    """Serve until told to stop; the exit code. ``model``: asked instead of the Messages API, if given.

    Raises ``Stop`` errors before any role began.
    """
    start_logging(settings.log_level, "+".join(role.value for role in roles))
    app = load_app(settings.app) if settings.app is not None else None
    for role in roles:
        check_role(role, settings, app, model)
    stopping = Stopping()
    _listen(stopping)
    log = KafkaLog(settings.bootstrap, settings.kafka, probe=f"{settings.namespace}.probe")
    entropy = SystemEntropy()
    means = Means(
        settings=settings,
        partitions=settings.partitions,
        log=log,
        clock=SystemClock(),
        entropy=entropy,
        app=app,
        token_key=token_key(settings, entropy),
        stopping=stopping,
        on_hang=partial(_hung, stopping),
        model=model,
    )
    if not _await_topics(means) or not _publish(means):
        return 0
    slots = {role: take_slot(settings.state_dir, settings.namespace, role, settings.slot) for role in roles}
    code = _serve(means, slots)
    if code in RESTARTS and not stopping.asked.wait(RESTART_DELAY_S):
        restart(Exit(code).name.lower())
    return code


def restart(reason: str) -> NoReturn:
    """Become a new process in place; every file and socket but the standard streams is closed."""
    _log.warning("starting anew: %s", reason, extra={"action": "worker_restarted", "reason": reason})
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os.closerange(FIRST_FILE_BEYOND_STDERR, os.sysconf("SC_OPEN_MAX"))
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # noqa: S606 - our own command line again


def token_key(settings: Settings, entropy: Entropy) -> bytes:
    """The key of the resume tokens: the setting, else one made once and kept in the state directory."""
    if settings.approval_token_key is not None:
        return settings.approval_token_key.reveal().encode()
    path = settings.state_dir / settings.namespace / "token.key"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f".token.key.{os.getpid()}")
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            os.write(descriptor, entropy.take(TOKEN_KEY_BYTES))
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        try:
            os.link(partial, path)  # the first one wins, whole
        except FileExistsError:
            pass
        finally:
            partial.unlink()
        return path.read_bytes()
    except OSError as error:
        raise SlotUnusable(f"{path}: {error}.") from error


def _hung(stopping: Stopping, name: str, limit_s: float) -> NoReturn:
    """A new process takes the place of one that hangs, unless it was asked to end."""
    reason = f"{name} did not return within {limit_s:.0f} s"
    if not stopping.asked.is_set():
        restart(reason)
    _log.error("%s; leaving", reason, extra={"action": "watchdog_exit", "call": name})
    logging.shutdown()
    os._exit(EXIT_CRASHED)


def _listen(stopping: Stopping) -> None:
    def heard(number: int, _: FrameType | None) -> None:
        again = stopping.asked.is_set()
        _log.info(
            "%s: %s", signal.Signals(number).name, "leaving" if again else "draining",
            extra={"action": "signal"},
        )  # fmt: skip
        stopping.asked.set()
        stopping.drain.set()
        if again:
            stopping.now.set()

    signal.signal(signal.SIGTERM, heard)
    signal.signal(signal.SIGINT, heard)


def _await_topics(means: Means) -> bool:
    """Wait for a broker that answers; False if told to stop meanwhile. Raises if the topics do not fit."""
    topic = means.namespace.topic(RUN_COMMANDS)
    while True:
        try:
            info = means.log.describe([topic], BROKER_TIMEOUT_S).get(topic)
            break
        except Retry as error:
            _log.warning(
                "waiting for a broker at %s: %s", means.settings.bootstrap, error,
                extra={"action": "broker_awaited"},
            )  # fmt: skip
            if means.stopping.asked.wait(BROKER_LOOK_S):
                return False
    if info is None:
        raise TopicsMissing(f"There is no {topic} at {means.settings.bootstrap}.")
    if info.partitions != means.partitions:
        raise PartitionsDiffer(f"{topic} has {info.partitions}, the setting says {means.partitions}.")
    return True


def _publish(means: Means) -> bool:
    """Make the app's definitions known, in their order; False if told to stop meanwhile."""
    while means.app is not None:
        try:
            publish_all(means)
            break
        except Retry as error:
            _log.warning("agents are not published: %s", error, extra={"action": "publish_failed"})
            if means.stopping.asked.wait(BROKER_LOOK_S):
                return False
    return True


def publish_all(means: Means) -> None:
    """Publish what is not known yet. Raises what the log raises."""
    assert means.app is not None
    names: Namespace = means.namespace
    log: Log = means.log
    client_id = f"{names.prefix}.publisher"
    book = DefinitionBook(log, names, means.clock, client_id)
    producer = log.producer(client_id)
    try:
        for agent in means.app.agents:
            publish(agent.definition(), book, producer, names, means.clock)
    finally:
        producer.close()
        book.close()


def _serve(means: Means, slots: Mapping[Role, Slot]) -> int:
    """Each role in a thread of its own; when one ends otherwise than asked, the others drain."""
    ended: queue.SimpleQueue[tuple[Role, int]] = queue.SimpleQueue()
    for role, slot in slots.items():
        _log.info(
            "%s begins, slot %s", role.value, slot.name, extra={"action": "role_began", "slot": slot.name}
        )
        threading.Thread(target=_run, args=(role, means, slot, ended), name=role.value, daemon=True).start()
    codes: list[int] = []
    while len(codes) < len(slots):
        try:
            role, code = ended.get(timeout=SIGNAL_LOOK_S)
        except queue.Empty:
            continue
        codes.append(code)
        _log.info("%s ended", role.value, extra={"action": "role_ended", "code": code})
        if code != 0:
            means.stopping.drain.set()
    for slot in slots.values():
        slot.release()
    return max(codes)


def _run(role: Role, means: Means, slot: Slot, ended: queue.SimpleQueue[tuple[Role, int]]) -> None:
    code = EXIT_CRASHED
    try:
        code = run_role(role, means, slot)
    except (ClientFatal, Retry, SlotTaken) as error:
        # A broker that is killed takes the answers to its group's members with it, and static members look
        # fenced by themselves then: the slot's lock says that nobody else here has it.
        _log.error("%s: %s", role.value, error, extra={"action": "client_broken", "code": error.code})
        code = Exit.BROKEN.value
    except PerdureError as error:
        _log.error("%s: %s", role.value, error, extra={"action": "role_stopped", "code": error.code})
        code = exit_code_of(error)
    except Exception:  # noqa: BLE001 - the others have to drain
        _log.exception("%s crashed", role.value, extra={"action": "role_crashed"})
    finally:
        ended.put((role, code))
