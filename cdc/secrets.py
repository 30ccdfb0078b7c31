"""Values that must not be read over someone's shoulder, and `redact` for text that may quote one.

A `Secret` shows itself as `***` wherever Python turns it into text; only `reveal()` gives the value. `redact` is the
second line of defence, for texts that other libraries write. Nothing here logs, and nothing here reads a config.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

MASK = "***"

# Every pattern here is linear in the text: quantifiers are bounded, or end in something that cannot fail.
_SECRET_WORD = r"(?:passw(?:or)?d|passphrase|secret|token|api[_-]?key|access[._]?key|credential|jaas)"  # noqa: S105
_IS_SECRET_NAME = re.compile(_SECRET_WORD, re.IGNORECASE)
_QUOTED = r"(?:'(?:\\.|[^'\\])*(?:'|\Z)|\"(?:\\.|[^\"\\])*(?:\"|\Z))"
# libpq's key=value form: '…' with backslash escapes, or a bare word in which a backslash escapes a space.
_ASSIGNMENT = re.compile(
    rf"({_SECRET_WORD}[\w.-]{{0,64}}[\"']?\s{{0,8}}=\s{{0,8}})(?:{_QUOTED}|(?:\\.|[^\s\\])+)",
    re.IGNORECASE | re.DOTALL,
)
_JSON_MEMBER = re.compile(
    rf"({_SECRET_WORD}[\w.-]{{0,64}}[\"']\s{{0,8}}:\s{{0,8}}){_QUOTED}", re.IGNORECASE | re.DOTALL
)
_AUTHORIZATION = re.compile(
    r"(authorization[\"']?\s{0,8}[:=]\s{0,8}[\"']?(?:\w{1,64}\s{1,8})?)[^\s\"',}]+", re.IGNORECASE
)
_TOKEN = re.compile(r"\S+")
_USER = re.compile(r"://[^:@/]*:")


def redact(text: str) -> str:
    """`text` with the passwords of URLs, `password=…` pairs and Authorization headers masked; rather more than less."""
    if "://" in text:
        text = _TOKEN.sub(lambda token: _redact_url(token[0]), text)
    return _redact_pairs(text)


def _redact_url(url: str) -> str:
    # Up to the last @: a password with an unescaped @ must not show its tail as the host.
    before, at, after = url.rpartition("@")
    user = _USER.search(before) if at else None
    return url if user is None else f"{before[: user.end()]}{MASK}@{after}"


def _redact_pairs(text: str) -> str:
    text = _ASSIGNMENT.sub(rf"\1{MASK}", text)
    text = _JSON_MEMBER.sub(rf'\1"{MASK}"', text)
    return _AUTHORIZATION.sub(rf"\1{MASK}", text)


def is_secret_name(name: str) -> bool:
    """Whether a setting or log field of this name holds something to hide (`sasl.password`, `api_key`)."""
    return _IS_SECRET_NAME.search(name) is not None


class Secret:
    """A text that hides itself; equal to another one with the same value, so configs can be compared."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    @classmethod
    def parse(cls, text: str) -> Secret:
        return cls(text)

    def reveal(self) -> str:
        return self._value

    def __str__(self) -> str:
        return MASK

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self)!r})"

    def __format__(self, spec: str) -> str:
        return format(str(self), spec)

    def __bool__(self) -> bool:
        return bool(self._value)

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and other._value == self._value

    def __hash__(self) -> int:
        return hash((type(self), self._value))


class Url(Secret):
    """A URL that shows everything but its password."""

    __slots__ = ()

    @classmethod
    def parse(cls, text: str) -> Url:
        return cls(text)

    def __str__(self) -> str:
        return _redact_pairs(_redact_url(self._value))


class Dsn(Url):
    """A libpq connection string, as URL or as `key=value` pairs, that shows everything but its passwords."""

    __slots__ = ()

    @classmethod
    def parse(cls, text: str) -> Dsn:
        return cls(text)


class Options(Mapping[str, str]):
    """Settings handed on to another library as they are; the values of secret-sounding ones are not shown."""

    __slots__ = ("_values",)

    def __init__(self, values: Mapping[str, str] | None = None) -> None:
        self._values = dict(values or {})

    def __getitem__(self, key: str) -> str:
        return self._values[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Options) and other._values == self._values

    def __hash__(self) -> int:
        return hash(frozenset(self._values.items()))

    def masked(self) -> dict[str, str]:
        return {key: MASK if is_secret_name(key) else redact(value) for key, value in self._values.items()}

    def __repr__(self) -> str:
        return f"Options({self.masked()!r})"


def masked(value: Any) -> Any:
    """`value` made of plain types with every secret masked, for logs; what has its own text (an LSN) shows that."""
    if value is None or type(value) in (bool, int, float):
        return value
    if isinstance(value, Options):
        return value.masked()
    if isinstance(value, Mapping):
        return {str(key): _masked_member(str(key), member) for key, member in value.items()}
    if isinstance(value, list | tuple | set | frozenset) and type(value).__str__ is object.__str__:
        return [masked(member) for member in value]
    return redact(str(value))


def _masked_member(name: str, value: Any) -> Any:
    # Under a secret-sounding name only text is hidden: `tokens: 3` is a count.
    return MASK if is_secret_name(name) and isinstance(value, str | bytes) else masked(value)
