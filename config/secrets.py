"""Secrets in options, and how options are shown without them."""

from __future__ import annotations

import re
from contextlib import suppress
from urllib.parse import unquote, urlsplit

_SECRET = re.compile(
    r"password|passphrase|secret|token|sasl\.|jaas|ssl[._]?key|ssl\.keystore\.key|\.pem$|"
    r"\.key$|credential|basic\.auth|oauth",
    re.IGNORECASE,
)


_NO_SECRETS = (".credentials.source", "database.password.file")


def is_secret(key: str) -> bool:
    """Tell whether the value of KEY must never appear in a message or a log."""
    # Where credentials are is none.
    return _SECRET.search(key) is not None and not key.endswith(_NO_SECRETS)


def url_passwords(urls: str) -> set[str]:
    """Return the passwords in URLS, with commas between them, as they stand there and decoded."""
    found: set[str] = set()
    for url in urls.split(","):
        with suppress(ValueError):
            password = urlsplit(url.strip()).password
            found |= {password, unquote(password)} if password else set()
    return found


# A salt stands in the key itself. Where the word is misspelt, nothing behind the algorithm shows.
_SALTED = re.compile(
    r"(?P<head>.*?[._-]salt[._-]?).+|(?P<short>.*?mask[._-]?hash[._-](?:v2[._-])?[^.]*[.]?).+",
    re.IGNORECASE | re.DOTALL,
)


def shown_key(key: str) -> str:
    """Return KEY as it may appear in a message: without the salt that it may hold."""
    match = _SALTED.fullmatch(key)
    return f"{match['head'] or match['short']}<salt>" if match else key


def shown_variable(name: str) -> str:
    """Return NAME, of a variable that gives an option, without the salt that it may hold."""
    key = name.replace("__", ".")
    shown = shown_key(key)
    return name if shown == key else shown.replace(".", "__")


# What stands before the host in a URL. A password may hold any character, a comma or blank too.
_LOGIN = re.compile(r"//.*@", re.DOTALL)

# The same where somebody forgot http://. Among words of ours a blank ends it.
_BARE_LOGIN = re.compile(r"""(?<![^\s,'"\[])[^\s/@:'"]+:.*@""", re.DOTALL)
_BARE_LOGIN_IN_TEXT = re.compile(r"""(?<![^\s,'"\[])[^\s/@:'"]+:[^\s@]+@""")


def holds_login(value: str) -> bool:
    """Tell whether VALUE may have the user and password of a URL in it."""
    return _LOGIN.search(value) is not None or _BARE_LOGIN.search(value) is not None


def without_logins(text: str) -> str:
    """Return TEXT without the user and password of a URL in it."""
    return _BARE_LOGIN_IN_TEXT.sub("(not shown)@", _LOGIN.sub("//(not shown)@", text))
