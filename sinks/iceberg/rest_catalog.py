"""pyiceberg's client for a REST catalog, with time limits: by itself it waits for ever for a server that is silent."""

from __future__ import annotations

from functools import partial

from pyiceberg.catalog.rest import RestCatalog
from requests import Session

from sinks.iceberg.catalog import ANSWER_SECONDS, CONNECT_SECONDS


class TimedRestCatalog(RestCatalog):
    """Named in the catalog's properties (`py-catalog-impl`)."""

    def _create_session(self) -> Session:
        session = super()._create_session()
        # The library has no setting for it, and makes the session itself.
        session.request = partial(session.request, timeout=(CONNECT_SECONDS, ANSWER_SECONDS))  # type: ignore[method-assign]
        return session
