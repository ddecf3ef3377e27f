"""The pipe between the shipper and a reader process of snapshots."""

from __future__ import annotations

import io
import os
import resource
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from firebird_cdc.journal.snapshot.pipe import read_object, write_object

_MANY = 1100  # select(2) takes no descriptor above 1023


@pytest.fixture
def many_descriptors() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with ExitStack() as stack:
        for _ in range(_MANY):
            stack.callback(os.close, os.open(os.devnull, os.O_RDONLY))
        yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("many_descriptors")
def test_reader_is_heard_by_a_shipper_with_many_descriptors() -> None:
    end, begin = os.pipe()
    with io.FileIO(end) as answers:
        assert answers.fileno() >= _MANY
        with os.fdopen(begin, "wb") as reader:
            write_object(reader, [b"rows", 1])
            assert read_object(answers, 10.0) == [b"rows", 1]
            with pytest.raises(TimeoutError):
                read_object(answers, 0.01)
        with pytest.raises(EOFError):
            read_object(answers, 10.0)
