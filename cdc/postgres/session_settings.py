"""The session parameters that give Postgres's text output the format that the encoders expect."""

from __future__ import annotations

# Each parameter changes the text output of some type. The encoders raise an error for text in another format.
SESSION_SETTINGS: dict[str, str] = {
    "client_encoding": "UTF8",
    "DateStyle": "ISO, YMD",
    "IntervalStyle": "iso_8601",
    "TimeZone": "UTC",
    "bytea_output": "hex",
    "extra_float_digits": "3",
    "lc_monetary": "C",
    "quote_all_identifiers": "off",
    "xmlbinary": "base64",
}


def startup_options() -> str:
    """Return the parameters as `options` of a connection string, where they override settings of a role or database."""
    settings = ((name, value.replace(" ", "\\ ")) for name, value in SESSION_SETTINGS.items())
    return " ".join(f"-c {name}={value}" for name, value in settings)
