"""When a view's rows are kept, and when they are thrown away."""

from __future__ import annotations

from pathlib import Path

import pytest

from perdure.connectors.faust_views.folder import Source, ViewFolder, take_view_folder

SOURCE = Source("shop.run-status", "id-1", 8, delete_retention_ms=1_000)


class Clock:
    """Stands still until it is set."""

    def __init__(self) -> None:
        self.now_ms = 1_000_000

    def wall_ms(self) -> int:
        return self.now_ms

    def boot_s(self) -> float:
        return self.now_ms / 1_000


class Counting:
    """Bytes that never repeat."""

    def __init__(self) -> None:
        self._number = 0

    def take(self, count: int) -> bytes:
        self._number += 1
        return self._number.to_bytes(count, "big")


@pytest.fixture
def clock() -> Clock:
    return Clock()


def _opened(state: Path, clock: Clock, source: Source = SOURCE) -> tuple[str | None, ViewFolder]:
    with take_view_folder(state, "shop") as folder:
        why = folder.open(source, clock, Counting())
        (folder.rows / "row").touch()
        return why, folder


def test_rows_are_kept_while_deletions_can_not_have_been_missed(tmp_path: Path, clock: Clock) -> None:
    """Up to half of delete.retention.ms after they were up to date the rows are used, later they are not."""
    assert _opened(tmp_path, clock)[0] == "new"
    clock.now_ms += 500
    assert _opened(tmp_path, clock)[0] is None
    clock.now_ms += 1
    assert _opened(tmp_path, clock)[0] == "age"


def test_being_up_to_date_is_what_counts(tmp_path: Path, clock: Clock) -> None:
    """Age is counted from the last time that everything visible was there."""
    _, folder = _opened(tmp_path, clock)
    clock.now_ms += 400
    folder.caught_up(clock.now_ms)
    clock.now_ms += 400
    assert _opened(tmp_path, clock)[0] is None


@pytest.mark.parametrize(
    ("source", "why"),
    [
        (Source("shop.run-status", "id-2", 8, 1_000), "topic"),
        (Source("other.run-status", "id-1", 8, 1_000), "topic"),
        (Source("shop.run-status", "id-1", 4, 1_000), "partitions"),
    ],
)
def test_rows_of_another_topic_are_thrown_away(
    tmp_path: Path, clock: Clock, source: Source, why: str
) -> None:
    """A topic that was made anew under the same name has none of the rows that are here."""
    _, folder = _opened(tmp_path, clock)
    again, reopened = _opened(tmp_path, clock, source)
    assert again == why
    assert reopened.marker.view_id == folder.marker.view_id
    assert _opened(tmp_path, clock, source)[0] is None


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"format": 1', '{"format": 9}'])
def test_a_marker_that_can_not_be_read_vouches_for_nothing(tmp_path: Path, clock: Clock, text: str) -> None:
    """Rows without a whole marker are thrown away."""
    _, folder = _opened(tmp_path, clock)
    (folder.folder / "view.json").write_text(text)
    (folder.rows / "row").touch()
    assert _opened(tmp_path, clock)[0] == "unmarked"


def test_a_condemned_folder_begins_anew(tmp_path: Path, clock: Clock) -> None:
    """What was found wrong while the view ran is thrown away by the next start."""
    _, folder = _opened(tmp_path, clock)
    folder.condemn()
    assert _opened(tmp_path, clock)[0] == "unmarked"


def test_a_clock_that_went_back_vouches_for_nothing(tmp_path: Path, clock: Clock) -> None:
    """Rows from the future have an age that nobody knows."""
    _opened(tmp_path, clock)
    clock.now_ms -= 1
    assert _opened(tmp_path, clock)[0] == "age"


def test_a_folder_copied_to_another_host_is_another_member(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two members of one name would put each other out of their group; the rows are good for both."""
    entropy = Counting()
    with take_view_folder(tmp_path, "shop") as folder:
        folder.open(SOURCE, clock, entropy)
    monkeypatch.setattr("socket.gethostname", lambda: "elsewhere")
    with take_view_folder(tmp_path, "shop") as copied:
        assert copied.open(SOURCE, clock, entropy) is None
    assert copied.marker.view_id != folder.marker.view_id
    with take_view_folder(tmp_path, "shop") as again:
        assert again.open(SOURCE, clock, entropy) is None
    assert again.marker == copied.marker


def test_two_views_have_two_folders(tmp_path: Path, clock: Clock) -> None:
    """A folder that is held is left alone, and its group name is not used twice."""
    entropy = Counting()
    with take_view_folder(tmp_path, "shop") as first, take_view_folder(tmp_path, "shop") as second:
        first.open(SOURCE, clock, entropy)
        second.open(SOURCE, clock, entropy)
        assert first.folder != second.folder
        assert first.marker.view_id != second.marker.view_id
    with take_view_folder(tmp_path, "shop") as again:
        assert again.folder == first.folder
