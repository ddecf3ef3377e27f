"""Substitutes for compiled packages: they give the same results as the packages do."""

from __future__ import annotations

import random
import struct
import subprocess
import sys
from enum import Enum
from pathlib import Path
from uuid import UUID

import google_crc32c
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from firebird_cdc.journal.events import json_bytes
from firebird_cdc.journal.format import crc32c
from firebird_cdc.journal.replay.cluster.package import write_archive

_IMPORTS = """
import sys
from importlib import import_module
from pkgutil import walk_packages

sys.path.insert(0, sys.argv[1])
for absent in ("google_crc32c", "orjson", "cffi", "confluent_kafka", "yaml._yaml"):
    sys.modules[absent] = None
import firebird_cdc
from firebird_cdc.journal import replay

assert firebird_cdc.archive == sys.argv[1], firebird_cdc.__file__
for module in walk_packages(replay.__path__, f"{replay.__name__}."):
    try:
        import_module(module.name)
    except ImportError as error:
        print(module.name.removeprefix(f"{replay.__name__}."))
        print(module.name, error, file=sys.stderr)
"""


def test_this_python_uses_the_compiled_modules() -> None:
    assert crc32c.COMPILED
    assert json_bytes.COMPILED


def test_spark_archive_is_importable_without_compiled_modules(tmp_path: Path) -> None:
    archive = tmp_path / "replay.zip"
    write_archive(archive)
    done = subprocess.run(
        [sys.executable, "-P", "-c", _IMPORTS, str(archive)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    # The command `repair` works beside a shipper, on its folder: no task of Spark's needs these.
    assert set(done.stdout.split()) == {"repair.plan", "repair.topics"}, done.stderr


def test_checksum_is_that_of_the_iscsi_standard() -> None:
    assert crc32c.plain_value(bytes(32)) == 0x8A9136AA
    assert crc32c.plain_value(bytes(range(32))) == 0x46DD794E


@pytest.mark.parametrize(("degree", "powers"), crc32c.FOLDS, ids=["long", "short"])
def test_folds_are_multiples_of_the_polynomial(degree: int, powers: tuple[int, ...]) -> None:
    polynomial = int("1" + f"{crc32c.POLYNOMIAL:032b}"[::-1], 2)  # the highest power to the left
    rest = 1 << degree
    for power in powers:
        rest ^= 1 << power
    while rest.bit_length() >= polynomial.bit_length():
        rest ^= polynomial << (rest.bit_length() - polynomial.bit_length())
    assert rest == 0


def test_checksums_of_all_lengths_are_those_of_the_compiled_library() -> None:
    source = random.Random(7)
    lengths = [*range(300), 512, 1694, 1695, 1696, 65536 - 40, 65536, 1 << 20]
    lengths += [source.randrange(300, 100_000) for _ in range(200)]
    for length in lengths:
        content, before = source.randbytes(length), source.getrandbits(32)
        assert crc32c.plain_extend(before, content) == google_crc32c.extend(before, content)
    sector = b"FBJ" + bytes(508)
    assert crc32c.plain_value(memoryview(sector)[1:]) == google_crc32c.value(sector[1:])


class _Kind(Enum):
    ONE = 1


_leaves = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**64 - 1),
    st.floats(),
    st.builds(lambda n: struct.unpack("<d", struct.pack("<Q", n))[0], st.integers(0, 2**64 - 1)),
    st.text(),
    st.binary(),
    st.uuids(),
    st.just(_Kind.ONE),
)
_values = st.recursive(
    _leaves,
    lambda inner: st.one_of(
        st.lists(inner), st.dictionaries(st.text(), inner), st.tuples(inner, inner)
    ),
    max_leaves=12,
)


@given(_values)
def test_json_is_that_of_orjson(value: object) -> None:
    assert json_bytes.plain_dumps(value, bytes.hex) == orjson.dumps(value, bytes.hex)


@given(st.integers(-330, 310), st.integers(1, 10**17))
def test_numbers_are_those_of_orjson(exponent: int, digits: int) -> None:
    value = float(f"{digits}e{exponent}")
    assert json_bytes.plain_dumps([value, -value]) == orjson.dumps([value, -value])


@pytest.mark.parametrize("value", [2**64, {1: 2}, object(), "\ud800", b"no default"])
def test_json_refuses_the_values_that_orjson_refuses(value: object) -> None:
    for dumps in (json_bytes.plain_dumps, orjson.dumps):
        with pytest.raises(TypeError):
            dumps(value)


def test_json_written_already_goes_in_as_it_is() -> None:
    fragment = json_bytes.PlainFragment('{"a":1}')
    assert json_bytes.plain_dumps({"f": fragment, "n": UUID(int=1)}) == (
        b'{"f":{"a":1},"n":"00000000-0000-0000-0000-000000000001"}'
    )
