"""Values that must not be read over someone's shoulder, and `redact` for text that may quote one.

A `Secret` shows itself as `***` wherever Python turns it into text; only `reveal()` gives the value. `redact` is the
second line of defence, for texts that other libraries write. Nothing here logs, and nothing here reads a config.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from cdc.public_settings import is_public_libpq_parameter, is_public_option, is_public_url_parameter

MASK = "***"

# Every pattern here is linear in the text: quantifiers are bounded, or end in something that cannot fail.
_SECRET_WORD = (
    r"(?:passw(?:or)?d|passphrase|secret|token|credential|jaas"  # noqa: S105 - a pattern
    r"|(?:api|access|account|client|server|private|shared|signing|encryption)[._-]?key)"
)
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
_BARE_NAME = re.compile(r"[\w.-]{1,64}")
_LIBPQ_PAIR = re.compile(r"\s*(\w+)\s*=\s*('(?:\\.|[^'\\])*'|(?:\\.|[^\s\\'])(?:\\.|[^\s\\])*|)(?=\s|\Z)", re.DOTALL)


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
    """A URL that shows its user, host and path; of its parameters only those that are known to be harmless."""

    __slots__ = ()

    @classmethod
    def parse(cls, text: str) -> Url:
        return cls(text)

    def __str__(self) -> str:
        return _public_url(self._value)


class WebhookUrl(Url):
    """A URL whose path is a secret as well: a client that knows it may post."""

    __slots__ = ()

    @classmethod
    def parse(cls, text: str) -> WebhookUrl:
        return cls(text)

    def __str__(self) -> str:
        scheme, _, rest = self._value.partition("://")
        # A port that is no number is the tail of a password.
        host = re.fullmatch(
            r"(?:[^/?#@]*@)?([\w.-]+(?::\d+)?|\[[0-9a-fA-F:.]+\](?::\d+)?)((?:[/?#].*)?)", rest, re.DOTALL
        )
        if host is None or "@" in host[2]:
            return f"{scheme}://{MASK}"
        return f"{scheme}://{host[1]}/{MASK}"


class Dsn(Url):
    """A libpq connection string, as URL or as `key=value` pairs, that shows only what is known to be harmless."""

    __slots__ = ()

    @classmethod
    def parse(cls, text: str) -> Dsn:
        return cls(text)

    def __str__(self) -> str:
        if "://" in self._value.partition("=")[0]:
            return _public_url(self._value, user_alone_is_public=True)
        return _public_pairs(self._value)


def _public_url(url: str, *, user_alone_is_public: bool = False) -> str:
    """`user_alone_is_public`: in other URLs than Postgres's, a user without a password may be a token."""
    scheme, separator, rest = url.partition("://")
    # Up to the last @: a password with an unescaped @ must not show its tail as the host.
    login, at, place = rest.rpartition("@")
    user, colon, _ = login.partition(":")
    if at:
        login = f"{user}:{MASK}" if colon else user if user_alone_is_public else MASK
    where, question, query = place.partition("#")[0].partition("?")
    shown = [_public_parameter(parameter) for parameter in query.split("&")]
    fragment = f"#{MASK}" if "#" in place else ""
    return f"{scheme}{separator}{login}{at}{where}{question}{'&'.join(shown) if question else ''}{fragment}"


def _public_parameter(parameter: str) -> str:
    name, is_, _ = parameter.partition("=")
    if not parameter or (is_ and is_public_url_parameter(name)):
        return parameter
    return f"{name}={MASK}" if is_ and _BARE_NAME.fullmatch(name) else MASK


def _public_pairs(text: str) -> str:
    """By libpq's grammar; from the first character on that does not fit it, everything is masked."""
    shown: list[str] = []
    at = 0
    while text[at:].strip():
        pair = _LIBPQ_PAIR.match(text, at)
        if pair is None:
            return " ".join([*shown, MASK])
        shown.append(f"{pair[1]}={pair[2] if is_public_libpq_parameter(pair[1]) else MASK}")
        at = pair.end()
    return " ".join(shown)


class SecretOptions(Mapping[str, str]):
    """Settings handed on to another library as they are; only the values of harmless ones are shown."""

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
        return isinstance(other, SecretOptions) and other._values == self._values

    def __hash__(self) -> int:
        return hash(frozenset(self._values.items()))

    def masked(self) -> dict[str, str]:
        return {key: redact(value) if is_public_option(key) else MASK for key, value in self._values.items()}

    def __repr__(self) -> str:
        return f"Options({self.masked()!r})"


def masked(value: Any) -> Any:
    """`value` made of plain types with every secret masked, for logs; what has its own text (an LSN) shows that."""
    if value is None or type(value) in (bool, int, float):
        return value
    if isinstance(value, SecretOptions):
        return value.masked()
    if isinstance(value, Mapping):
        return {str(key): _masked_member(str(key), member) for key, member in value.items()}
    if isinstance(value, list | tuple | set | frozenset) and type(value).__str__ is object.__str__:
        return [masked(member) for member in value]
    return redact(str(value))


def _masked_member(name: str, value: Any) -> Any:
    # Under a secret-sounding name only text is hidden: `tokens: 3` is a count.
    return MASK if is_secret_name(name) and isinstance(value, str | bytes) else masked(value)
