"""Secret values that print as `***`, and `redact`, which masks secrets in text.

A `Secret` becomes `***` wherever Python converts it to text. Only `reveal()` returns the value. `redact` is the second
line of defence, for text from other libraries. This module neither logs nor reads the config.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from cdc.public_settings import is_public_libpq_parameter, is_public_option, is_public_url_parameter

MASK = "***"

# Every pattern takes linear time: its quantifiers are bounded, or what follows them always matches.
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
    """Return `text` with passwords in URLs, `password=…` pairs and Authorization headers masked; in doubt, mask."""
    if "://" in text:
        text = _TOKEN.sub(lambda token: _redact_url(token[0]), text)
    return _redact_pairs(text)


def _redact_url(url: str) -> str:
    # The login ends at the last @: the rest of a password with an unescaped @ must not be printed as the host.
    before, at, after = url.rpartition("@")
    user = _USER.search(before) if at else None
    return url if user is None else f"{before[: user.end()]}{MASK}@{after}"


def _redact_pairs(text: str) -> str:
    text = _ASSIGNMENT.sub(rf"\1{MASK}", text)
    text = _JSON_MEMBER.sub(rf'\1"{MASK}"', text)
    return _AUTHORIZATION.sub(rf"\1{MASK}", text)


def is_secret_name(name: str) -> bool:
    """Return whether a setting or log field with this name holds a secret (`sasl.password`, `api_key`)."""
    return _IS_SECRET_NAME.search(name) is not None


class Secret:
    """A text that prints as `***`. Two secrets with the same value are equal, so configs can be compared."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    @classmethod
    def parse(cls, text: str) -> Secret:
        return cls(text)

    def reveal(self) -> str:
        """Return the secret value."""
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
    """A URL that prints its user, host, path and public parameters, and masks the rest."""

    __slots__ = ()

    @classmethod
    def parse(cls, text: str) -> Url:
        return cls(text)

    def __str__(self) -> str:
        return _public_url(self._value)


class WebhookUrl(Url):
    """A URL whose path is secret too: any client that has the URL can post to it."""

    __slots__ = ()

    @classmethod
    def parse(cls, text: str) -> WebhookUrl:
        return cls(text)

    def __str__(self) -> str:
        scheme, _, rest = self._value.partition("://")
        # A port that is not a number is the rest of a password.
        host = re.fullmatch(
            r"(?:[^/?#@]*@)?([\w.-]+(?::\d+)?|\[[0-9a-fA-F:.]+\](?::\d+)?)((?:[/?#].*)?)", rest, re.DOTALL
        )
        if host is None or "@" in host[2]:
            return f"{scheme}://{MASK}"
        return f"{scheme}://{host[1]}/{MASK}"


class Dsn(Url):
    """A libpq connection string, a URL or `key=value` pairs, that prints only its public parameters."""

    __slots__ = ()

    @classmethod
    def parse(cls, text: str) -> Dsn:
        return cls(text)

    def __str__(self) -> str:
        if "://" in self._value.partition("=")[0]:
            return _public_url(self._value, user_alone_is_public=True)
        return _public_pairs(self._value)


def _public_url(url: str, *, user_alone_is_public: bool = False) -> str:
    """Return the URL with its secrets masked.

    `user_alone_is_public`: print a user without a password. Outside Postgres URLs such a user may be a token.
    """
    scheme, separator, rest = url.partition("://")
    # The login ends at the last @: the rest of a password with an unescaped @ must not be printed as the host.
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
    """Return libpq's `key=value` pairs with secrets masked. Text that does not parse is masked to its end."""
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
    """Options that are passed to another library unchanged. Only the values of public options are printed."""

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
        """Return the options with secret values masked."""
        return {key: redact(value) if is_public_option(key) else MASK for key, value in self._values.items()}

    def __repr__(self) -> str:
        return f"Options({self.masked()!r})"


def masked(value: Any) -> Any:
    """Return `value` as plain types for logs, with every secret masked. Other objects (an LSN) become their `str`."""
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
    # Under a secret's name only text is masked: `tokens: 3` is a count.
    return MASK if is_secret_name(name) and isinstance(value, str | bytes) else masked(value)
