"""The OpenAPI 3.1 description of the JSON API. The schemas come from the dataclasses of the status record."""

from __future__ import annotations

import dataclasses
import types
import typing
from enum import Enum
from typing import Any

from cdc import __version__
from cdc.lsn import LSN
from cdc.monitoring import status_record
from cdc.monitoring.alerts.journal import Entry
from cdc.monitoring.web.actions import KINDS, DashboardAction

_PLAIN = {
    str: {"type": "string"},
    int: {"type": "integer"},
    float: {"type": "number"},
    bool: {"type": "boolean"},
    type(None): {"type": "null"},
    LSN: {"type": "string", "description": "As Postgres prints it: 16/B374D848"},
}


def openapi_description() -> dict[str, Any]:
    """Return the OpenAPI document."""
    schemas: dict[str, Any] = {}
    for kind in (status_record.PipelineStatus, Entry, DashboardAction):
        _define(kind, schemas)
    state = {
        "type": "object",
        "properties": {
            "version": {"type": "string"},
            "record": {"anyOf": [_reference(status_record.PipelineStatus), {"type": "null"}]},
            "age_seconds": {"type": ["number", "null"]},
            "interval_seconds": {"type": "number"},
            "max_seconds": {"type": "number"},
            "journal": {"type": "array", "items": _reference(Entry)},
            "actions": {"type": "array", "items": _reference(DashboardAction)},
            "can_act": {"type": "boolean"},
        },
    }
    return {
        "openapi": "3.1.0",
        "info": {"title": "Tailrace", "version": __version__, "description": "The status of the pipeline."},
        "paths": _paths(),
        "components": {
            "schemas": {**schemas, "State": state},
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "session": {"type": "apiKey", "in": "cookie", "name": "tailrace"},
            },
        },
        "security": [{"bearer": []}, {"session": []}],
    }


def _paths() -> dict[str, Any]:
    number = {"type": "number", "default": 60}
    minutes = {"name": "minutes", "in": "query", "schema": number, "description": "How far back."}
    store = {"name": "store", "in": "path", "required": True, "schema": {"type": "string"}}
    kind = {"name": "kind", "in": "path", "required": True, "schema": {"type": "string", "enum": list(KINDS)}}
    history = {
        "type": "object",
        "properties": {
            "times": {"type": "array", "items": {"type": "number"}},
            "step_seconds": {"type": "number"},
            "figures": {
                "type": "object",
                "additionalProperties": {"type": "array", "items": {"type": ["number", "null"]}},
            },
        },
    }
    return {
        "/api/state": {"get": _get("The current status.", {"$ref": "#/components/schemas/State"})},
        "/api/history": {"get": {**_get("The figures of the charts.", history), "parameters": [minutes]}},
        "/api/events": {
            "get": {
                "summary": "Server-sent events named `state`: one State after each poll.",
                "responses": {"200": {"description": "A stream.", "content": {"text/event-stream": {}}}},
            }
        },
        "/api/stores/{store}/{kind}": {
            "post": {
                "summary": "Pause or resume a store, start its audit, or retry its parked rows.",
                "parameters": [store, kind],
                "responses": {
                    "202": {"description": "The action is done, or has been started."},
                    "401": {"description": "The token is missing or wrong."},
                    "403": {"description": "The request has another origin, or no token is configured."},
                    "404": {"description": "The store or the action does not exist."},
                    "409": {"description": "The action cannot run at the moment."},
                },
            }
        },
        "/metrics": {"get": _text("Prometheus metrics.", "200")},
        "/healthz": {"get": {**_text("The process is running.", "200"), "security": []}},
        "/readyz": {"get": {**_text("200 if no hop is down or stalled; 503 otherwise.", "200", "503"), "security": []}},
    }


def _get(summary: str, schema: dict[str, Any]) -> dict[str, Any]:
    content = {"application/json": {"schema": schema}}
    return {"summary": summary, "responses": {"200": {"description": summary, "content": content}}}


def _text(summary: str, *statuses: str) -> dict[str, Any]:
    return {"summary": summary, "responses": {status: {"description": "Plain text."} for status in statuses}}


def _define(kind: Any, schemas: dict[str, Any]) -> None:
    if kind.__name__ in schemas:
        return
    schemas[kind.__name__] = {}  # a type may contain itself
    hints = typing.get_type_hints(kind)
    properties = {each.name: _schema(hints[each.name], schemas) for each in dataclasses.fields(kind)}
    if kind is status_record.PipelineStatus:
        properties["ready"] = {"type": "boolean"}
    if kind is status_record.SlotStatus:
        properties["used_percent"] = {"type": ["number", "null"]}
    schemas[kind.__name__] = {
        "type": "object",
        "description": (kind.__doc__ or "").strip(),
        "properties": properties,
    }


def _schema(hint: Any, schemas: dict[str, Any]) -> dict[str, Any]:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint in _PLAIN:
        found: dict[str, Any] = dict(_PLAIN[hint])
    elif origin in (types.UnionType, typing.Union):
        found = {"anyOf": [_schema(each, schemas) for each in arguments]}
    elif origin is tuple:
        found = {"type": "array", "items": _schema(arguments[0], schemas)}
    elif origin is dict:
        found = {"type": "object", "additionalProperties": _schema(arguments[1], schemas)}
    elif issubclass(hint, Enum):
        found = {"type": "string", "enum": [each.value for each in hint]}
    else:
        _define(hint, schemas)
        found = dict(_reference(hint))
    return found


def _reference(kind: type) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{kind.__name__}"}
