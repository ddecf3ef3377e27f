"""Each version of ours is known by the form in which it wrote messages."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from earlier_messages import OPTIONS, configuration, messages_of, told, write_journals

from firebird_cdc import __version__
from firebird_cdc.journal.events import source
from firebird_cdc.journal.events.render import Renderer
from firebird_cdc.journal.events.versions import EARLIER, TODAY, form_of, is_later


@pytest.mark.parametrize(
    ("version", "form"),
    [
        ("0.1.0", EARLIER[0]),
        ("0.1.99", EARLIER[0]),
        ("0.2.0.dev3", TODAY),
        (__version__, TODAY),
        ("12.0.1", TODAY),
        ("?", TODAY),
        ("", TODAY),
    ],
)
def test_the_form_of_a_version(version: str, form: object) -> None:
    assert form_of(version) == form


def test_later_versions_are_recognised() -> None:
    assert is_later("999.0")
    assert not is_later(__version__)
    assert not is_later("0.1.0")
    assert not is_later("no version")


def test_all_forms_differ() -> None:
    assert len({*EARLIER, TODAY}) == len(EARLIER) + 1


WRITTEN = json.loads((Path(__file__).parent / "data" / "messages-0.1.0.json").read_text("utf-8"))


@pytest.mark.parametrize("name", OPTIONS)
def test_messages_in_an_earlier_form_are_those_that_the_version_wrote(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Byte by byte, headers too. What 0.1.0 wrote was kept when it was the version at hand."""
    version = WRITTEN["version"]
    monkeypatch.setattr(source, "__version__", version)
    renderer = Renderer(
        configuration(tmp_path, OPTIONS[name]), 1_000_000, message_form=form_of(version)
    )
    schemas = list(WRITTEN["schemas"])
    messages = told(messages_of(renderer, write_journals(tmp_path)), schemas)
    assert messages == WRITTEN["messages"][name]
    assert schemas == WRITTEN["schemas"]


def test_messages_differ_from_those_of_the_previous_version(tmp_path: Path) -> None:
    """Today's messages differ, or no form of their own would be needed."""
    options = {**OPTIONS["plain"], "decimal.int128.precision": "39"}
    renderer = Renderer(configuration(tmp_path, options), 1_000_000)
    messages = told(messages_of(renderer, write_journals(tmp_path)), list(WRITTEN["schemas"]))
    assert len(messages) == len(WRITTEN["messages"]["plain"])
    assert messages != WRITTEN["messages"]["plain"]
