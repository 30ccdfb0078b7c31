"""The settings under which Postgres's text output is what the encoders expect, and the same in every session."""

from __future__ import annotations

# Each changes the text of some type. The encoders refuse what they do not recognise rather than guess.
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
    """`options` of a connection string: as start-up options they outrank what a role or database sets."""
    settings = ((name, value.replace(" ", "\\ ")) for name, value in SESSION_SETTINGS.items())
    return " ".join(f"-c {name}={value}" for name, value in settings)
