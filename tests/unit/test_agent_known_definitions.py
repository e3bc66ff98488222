"""What an executor knows of agents: everything published, read on at a miss, but not at every miss."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from perdure.connectors.agent import Agent
from perdure.connectors.known_definitions import MISS_INTERVAL_S, KnownDefinitions
from perdure.processors.definitions import DefinitionBook, publish
from perdure.topics.errors import Unavailable
from perdure.topics.model_cluster import ModelCluster
from perdure.topics.model_log import ModelLog
from perdure.topics.table import AGENT_DEFINITIONS, BY_NAME, Namespace

NAMES = Namespace("unit")


class SetClock:
    """Stands still unless a test moves it."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def wall_ms(self) -> int:
        return 1_700_000_000_000

    def boot_s(self) -> float:
        return self.now_s


class CountingBook(DefinitionBook):
    """Counts how often the topic is read to its end; fails when told to."""

    reads = 0
    is_broken = False

    def catch_up(self, timeout_s: float) -> None:
        self.reads += 1
        if self.is_broken:
            raise Unavailable
        super().catch_up(timeout_s)


@pytest.fixture
def log() -> ModelLog:
    cluster = ModelCluster()
    spec = BY_NAME[AGENT_DEFINITIONS]
    cluster.create_topic(NAMES.topic(AGENT_DEFINITIONS), spec.partitions(1), spec.settings(1))
    return ModelLog(cluster)


@pytest.fixture
def clock() -> SetClock:
    return SetClock()


@pytest.fixture
def book(log: ModelLog, clock: SetClock) -> Iterator[CountingBook]:
    book = CountingBook(log, NAMES, clock, "reader")
    yield book
    book.close()


def announce(log: ModelLog, clock: SetClock, agent: Agent) -> None:
    """Another process publishes it."""
    writer = DefinitionBook(log, NAMES, clock, "writer")
    publish(agent.definition(), writer, log.producer("writer"), NAMES, clock)
    writer.close()


def test_a_definition_that_was_just_published_is_found(
    log: ModelLog, clock: SetClock, book: CountingBook
) -> None:
    """A miss reads the topic on, so that a request for it is not declined; a hit reads nothing."""
    known = KnownDefinitions(book, clock)
    one, two = Agent("a", model="m"), Agent("a", model="m", version="2")
    announce(log, clock, one)
    assert known.by_digest(one.digest) == one.definition()
    assert known.by_digest(one.digest) is not None
    assert book.reads == 1
    announce(log, clock, two)
    clock.now_s += MISS_INTERVAL_S
    assert known.newest("a", None) == (two.digest, two.definition())
    assert known.newest("a", "1") == (one.digest, one.definition())


def test_misses_do_not_read_the_topic_again_and_again(
    log: ModelLog, clock: SetClock, book: CountingBook
) -> None:
    """Within the interval a second miss is answered from memory; after it the topic is looked at again."""
    known = KnownDefinitions(book, clock)
    agent = Agent("a", model="m")
    assert known.by_digest(agent.digest) is None
    announce(log, clock, agent)
    assert known.by_digest(agent.digest) is None
    assert book.reads == 1
    clock.now_s += MISS_INTERVAL_S
    assert known.by_digest(agent.digest) is not None
    assert book.reads == 2


def test_a_log_that_does_not_answer_is_a_miss_and_no_error(clock: SetClock, book: CountingBook) -> None:
    """The engine goes on and the request is declined, to be tried again."""
    book.is_broken = True
    assert KnownDefinitions(book, clock).by_digest("0" * 64) is None
