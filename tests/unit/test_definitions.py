"""The book of agent definitions, over the model log."""

from __future__ import annotations

import logging

import pytest
from msgspec.structs import replace

from perdure.processors.definitions import DefinitionBook, FixedDefinitions, body_of, digest_of, publish
from perdure.schemas.codec import encode
from perdure.schemas.definition import AgentDefinition
from perdure.schemas.outputs import DefinitionRecord
from perdure.topics.errors import Unavailable
from perdure.topics.log import Outgoing
from perdure.topics.model_cluster import ModelCluster
from perdure.topics.model_log import ModelLog
from perdure.topics.table import AGENT_DEFINITIONS, BY_NAME, Namespace

NAMES = Namespace("book")
TOPIC = NAMES.topic(AGENT_DEFINITIONS)
ONE = AgentDefinition("support", "1", "model")
TWO = replace(ONE, version="2")


class Shelf:
    """A cluster with the topic, and ways to write to it."""

    def __init__(self) -> None:
        self.cluster = ModelCluster()
        self.create()
        self.log = ModelLog(self.cluster)
        self.producer = self.log.producer("deployer")

    def create(self) -> None:
        self.cluster.create_topic(TOPIC, 1, BY_NAME[AGENT_DEFINITIONS].settings(1))

    def wall_ms(self) -> int:
        return self.cluster.now_ms

    def boot_s(self) -> float:
        return self.cluster.now_ms / 1_000

    def book(self) -> DefinitionBook:
        return DefinitionBook(self.log, NAMES, self, "reader")

    def publish(self, definition: AgentDefinition) -> str:
        return publish(definition, self.book(), self.producer, NAMES, self)

    def write(self, key: bytes, value: bytes | None) -> None:
        self.producer.produce(Outgoing(TOPIC, 0, key, value))
        self.producer.flush(1.0)

    @property
    def count(self) -> int:
        return len(self.cluster.visible(TOPIC, 0))


@pytest.fixture
def shelf() -> Shelf:
    return Shelf()


def test_published_definition_is_found_by_hash_version_and_name(shelf: Shelf) -> None:
    """After catching up, a definition is known by its hash, by its version, and the newest by its agent."""
    first, second = shelf.publish(ONE), shelf.publish(TWO)
    book = shelf.book()
    book.catch_up(1.0)
    assert book.by_digest(first) == ONE
    assert book.newest("support", None) == (second, TWO)
    assert book.newest("support", "1") == (first, ONE)
    assert book.newest("support", "3") is None
    assert book.newest("stranger", None) is None


def test_definition_is_never_written_twice(shelf: Shelf) -> None:
    """Publishing what is known writes nothing and gives the same hash."""
    assert shelf.publish(ONE) == shelf.publish(ONE) == digest_of(body_of(ONE))
    assert shelf.count == 1


def test_refresh_takes_in_what_has_arrived(shelf: Shelf) -> None:
    """A book that was open before learns of what is published later without being reopened."""
    book = shelf.book()
    book.catch_up(1.0)
    digest = shelf.publish(ONE)
    assert book.by_digest(digest) is None
    book.refresh()
    assert book.by_digest(digest) == ONE


def test_catching_up_reaches_the_end_of_now(shelf: Shelf) -> None:
    """Catching up reads everything that stood in the topic when it was asked."""
    bodies = [body_of(replace(ONE, version=str(n))) for n in range(1_200)]
    for n, body in enumerate(bodies):
        shelf.write(b"%d" % n, encode(DefinitionRecord("support", str(n), digest_of(body), body, 1)))
    book = shelf.book()
    book.catch_up(1.0)
    assert all(book.by_digest(digest_of(body)) for body in bodies)


def test_catching_up_gives_up_in_time(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    """A topic that can not be read raises Unavailable, under a clock that stands still as well."""
    shelf.publish(ONE)
    book = shelf.book()
    monkeypatch.setattr(book, "_read", lambda wait_s: False)
    with pytest.raises(Unavailable):
        book.catch_up(1.0)


def test_bad_records_are_skipped_and_counted(shelf: Shelf, caplog: pytest.LogCaptureFixture) -> None:
    """Bytes, tombstones, bodies that are no definition or not of their hash are skipped and logged."""
    caplog.set_level(logging.WARNING)
    body = body_of(ONE)
    shelf.write(b"a", b"garbage")
    shelf.write(b"b", None)
    shelf.write(b"c", encode(DefinitionRecord("support", "1", "0" * 64, body, 1)))
    shelf.write(b"d", encode(DefinitionRecord("support", "1", digest_of(b"[]"), b"[]", 1)))
    digest = shelf.publish(TWO)
    book = shelf.book()
    book.catch_up(1.0)
    assert book.counts["undecodable"] == 4
    assert book.newest("support", None) == (digest, TWO)
    assert {r.__dict__["action"] for r in caplog.records} == {"definition_ignored"}


def test_topic_created_anew_is_read_again(shelf: Shelf) -> None:
    """When the topic is created anew, what was known stays known and what is new becomes known."""
    first = [shelf.publish(replace(ONE, version=str(n))) for n in range(3)]
    book = shelf.book()
    book.catch_up(1.0)
    shelf.cluster.delete_topic(TOPIC)
    shelf.create()
    shelf.producer = shelf.log.producer("deployer-again")
    digest = shelf.publish(replace(TWO, model="another"))
    book.refresh()
    book.catch_up(1.0)
    assert book.by_digest(digest) is not None
    assert all(book.by_digest(each) for each in first)


def test_fixed_definitions_answer_like_the_book() -> None:
    """The fixed source finds by hash, version and name, newest last."""
    fixed = FixedDefinitions(ONE, TWO)
    assert fixed.newest("support", None) == (digest_of(body_of(TWO)), TWO)
    assert fixed.newest("support", "1") == (digest_of(body_of(ONE)), ONE)
    fixed.add(ONE)
    assert fixed.newest("support", None) == (digest_of(body_of(ONE)), ONE)
