"""Values that are too large for a message: placeholders where an option asks for them."""

from __future__ import annotations

import json
from base64 import b64decode
from dataclasses import replace
from typing import Any

import pytest
from columns import column
from shipment import Fill, Render

from firebird_cdc.journal.events.bad_event import BadEvent
from firebird_cdc.journal.events.oversized import OVERSIZED_HEADER
from firebird_cdc.journal.events.records import Message, Record
from firebird_cdc.journal.format import Column, JournalWriter, Storage

LIMIT = 1_000_000
"""Bytes that a message may have, as the fixture renders it."""

PLACEHOLDER = "event.oversized.value: placeholder"
SKIP = "event.processing.failure.handling.mode: skip"
TEXT = "__debezium_unavailable_value"

ID = column("ID", Storage.BIGINT, 1)
BODY = column("BODY", Storage.BLOB, sub_type=1, charset_id=4)
PHOTO = column("PHOTO", Storage.BLOB)
NAME = column("NAME", Storage.TEXT, charset_id=4)


def change(
    columns: tuple[Column, ...], before: tuple[Any, ...] | None, after: tuple[Any, ...] | None
) -> Fill:
    """Make what writes one change; bytes become BLOBs."""

    def fill(writer: JournalWriter) -> None:
        table = writer.table("DOC", columns)

        def row(values: tuple[Any, ...]) -> tuple[Any, ...]:
            return tuple(writer.blob(v) if isinstance(v, bytes) else v for v in values)

        if before is None:
            assert after is not None
            writer.insert(table, row(after))
        elif after is None:
            writer.delete(table, row(before))
        else:
            writer.update(table, row(before), row(after))

    return fill


def payload(message: Message) -> Any:
    assert message.value is not None
    return json.loads(message.value)["payload"]


def placed(message: Message) -> Any:
    """Return the content of the header, None without one."""
    headers = dict(message.headers)
    return json.loads(headers[OVERSIZED_HEADER]) if OVERSIZED_HEADER in headers else None


@pytest.mark.parametrize("lines", [(), ("event.oversized.value: quarantine",)])
@pytest.mark.parametrize("mode", ["fail", "skip"])
def test_a_value_that_is_too_large_is_a_bad_event(
    render: Render, lines: tuple[str, ...], mode: str
) -> None:
    fill = change((ID, BODY), None, (7, b"x" * 2 * LIMIT))
    with pytest.raises(BadEvent, match="column BODY: a blob of 2000000 bytes") as caught:
        render(fill, f"event.processing.failure.handling.mode: {mode}", *lines)
    assert caught.value.told.endswith('it is of table DOC, key {"ID":7}')


@pytest.mark.parametrize("mode", ["fail", "skip"])
def test_oversized_value_becomes_a_placeholder_if_configured(render: Render, mode: str) -> None:
    columns = (ID, BODY, PHOTO, NAME)
    fill = change(columns, None, (7, b"x" * 2 * LIMIT, b"\xff" * 2 * LIMIT, "n"))
    lines = (PLACEHOLDER, f"event.processing.failure.handling.mode: {mode}")
    (message,) = render(fill, *lines)
    row = payload(message)["after"]
    assert row == {"ID": 7, "BODY": TEXT, "PHOTO": row["PHOTO"], "NAME": "n"}
    assert b64decode(row["PHOTO"]) == TEXT.encode()
    assert placed(message) == {"after": ["BODY", "PHOTO"]}
    (message,) = render(
        fill, PLACEHOLDER, "toasted.value.placeholder: hex:00ff", "binary.handling.mode: hex"
    )
    assert payload(message)["after"]["PHOTO"] == "00ff"


def test_a_message_that_fits_has_no_placeholder(render: Render) -> None:
    (message,) = render(change((ID, BODY), None, (7, b"x" * (LIMIT // 2))), PLACEHOLDER)
    assert payload(message)["after"]["BODY"] == "x" * (LIMIT // 2)
    assert placed(message) is None


def test_no_more_values_give_way_than_have_to(render: Render) -> None:
    """The largest column first, and of it the row before the change."""
    columns = (ID, NAME, BODY, PHOTO)
    body, photo = b"b" * 400_000, b"p" * 200_000
    old, new = (7, "old", body, photo), (7, "new", body + b"!", photo)
    (message,) = render(change(columns, old, new), PLACEHOLDER)
    event = payload(message)
    assert placed(message) == {"before": ["BODY"]}
    assert event["before"] == {
        "ID": 7, "NAME": "old", "BODY": TEXT, "PHOTO": event["after"]["PHOTO"],
    }  # fmt: skip
    assert event["after"]["BODY"] == "b" * 400_000 + "!"
    assert b64decode(event["after"]["PHOTO"]) == photo


def test_value_oversized_only_once_encoded_becomes_a_placeholder(render: Render) -> None:
    (message,) = render(change((ID, PHOTO), None, (7, b"\xff" * 900_000)), PLACEHOLDER)
    assert b64decode(payload(message)["after"]["PHOTO"]) == TEXT.encode()


def test_oversized_delete_has_a_placeholder_and_its_tombstone_none(render: Render) -> None:
    gone, tombstone = render(
        change((ID, BODY), (7, b"x" * 2 * LIMIT), None), PLACEHOLDER, left_out=True
    )
    assert payload(gone)["before"]["BODY"] == TEXT
    assert placed(gone) == {"before": ["BODY"]}
    assert tombstone.value is None
    assert placed(tombstone) is None


def test_key_change_marks_the_placeholders_of_each_message(render: Render) -> None:
    fill = change((ID, BODY), (7, b"x" * 2 * LIMIT), (8, b"small"))
    gone, _, come = render(fill, PLACEHOLDER, left_out=True)
    assert (payload(gone)["before"]["BODY"], placed(gone)) == (TEXT, {"before": ["BODY"]})
    assert (payload(come)["after"]["BODY"], placed(come)) == ("small", None)


def test_transactions_count_such_an_event_once(render: Render) -> None:
    fill = change((ID, BODY, PHOTO), None, (7, b"b" * 850_000, b"p" * 800_000))
    _, event, end = render(fill, PLACEHOLDER, "provide.transaction.metadata: true")
    assert payload(event)["transaction"]["total_order"] == 1
    assert payload(end)["event_count"] == 1
    assert placed(event) == {"after": ["BODY", "PHOTO"]}


def test_transactions_count_an_event_once_that_has_no_room_for_its_header(render: Render) -> None:
    """With BODY away the message fits, but for the header that tells so; then PHOTO goes, too."""

    def of(photo_bytes: int) -> list[Message]:
        fill = change((ID, BODY, PHOTO), None, (7, b"b" * 2 * LIMIT, b"p" * photo_bytes))
        return render(fill, PLACEHOLDER, "provide.transaction.metadata: true")

    photo_bytes = 600_000
    _, event, _ = of(photo_bytes)
    assert placed(event) == {"after": ["BODY"]}
    assert event.key is not None and event.value is not None
    around = sum(len(name) + len(value or b"") for name, value in event.headers)
    room = LIMIT - 128 - around - len(event.key) - len(event.value)
    _, event, _ = of(photo_bytes + room // 4 * 3)
    assert placed(event) == {"after": ["BODY"]}
    _, event, end = of(photo_bytes + (room + 20) // 4 * 3)
    assert placed(event) == {"after": ["BODY", "PHOTO"]}
    assert payload(event)["transaction"]["total_order"] == 1
    assert payload(end)["event_count"] == 1


class Long:
    """A transform whose header has half as many characters as bytes."""

    def apply(self, record: Record) -> Record:
        return replace(record, headers=[*record.headers, ("жук", "ж" * (LIMIT // 2))])


def test_headers_are_measured_in_bytes(render: Render) -> None:
    fill = change((ID, NAME), None, (7, "n"))
    with pytest.raises(BadEvent, match=r"its message has 100\d{4} bytes, the producer takes"):
        render(fill, SKIP, "transforms: t", f"transforms.t.type: {__name__}.Long")


def test_a_key_is_never_a_placeholder(render: Render) -> None:
    fill = change((ID, BODY), None, (7, b"x" * 2 * LIMIT))
    with pytest.raises(BadEvent, match="column BODY: a blob of 2000000 bytes"):
        render(fill, PLACEHOLDER, "message.key.columns: .*DOC:BODY")


def test_unencodable_number_in_an_oversized_row_is_a_bad_event(render: Render) -> None:
    numbers = column("NUMBERS", Storage.DOUBLE)
    with pytest.raises(BadEvent, match="column NUMBERS: nan"):
        fill = change((ID, numbers, BODY), None, (7, float("nan"), b"x" * 2 * LIMIT))
        render(fill, PLACEHOLDER, SKIP)


def test_event_oversized_despite_placeholders_is_a_bad_event(render: Render) -> None:
    columns = (ID, *(column(f"F{n}", Storage.DOUBLE) for n in range(20_000)), BODY)
    fill = change(columns, None, (7, *[1.2345678901234567e-300] * 20_000, b"x" * 2 * LIMIT))
    with pytest.raises(BadEvent, match=r"its message has \d+ bytes, the producer takes 1000000"):
        render(fill, PLACEHOLDER, SKIP)


def test_rules_for_columns_and_placeholders(render: Render) -> None:
    """A mask needs no content, a truncated text is read in part, a hash has a placeholder."""
    fill = change((ID, BODY), None, (7, b"x" * 20 * LIMIT))
    for line, wanted in (
        ("column.mask.with.5.chars: .*BODY", "*****"),
        ("column.truncate.to.3.chars: .*BODY", "xxx"),
        ("column.mask.hash.SHA-256.with.salt.pepper: .*BODY", TEXT),
    ):
        (message,) = render(fill, PLACEHOLDER, line)
        assert payload(message)["after"]["BODY"] == wanted


def test_unwrapped_row_keeps_its_placeholder(render: Render) -> None:
    fill = change((ID, BODY), None, (7, b"x" * 2 * LIMIT))
    unwrap = ("transforms: u", "transforms.u.type: unwrap")
    (message,) = render(fill, PLACEHOLDER, *unwrap)
    assert payload(message) == {"ID": 7, "BODY": TEXT}
    assert placed(message) == {"after": ["BODY"]}
