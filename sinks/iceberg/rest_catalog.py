"""pyiceberg's REST catalog client with time limits. Without them it waits for ever for an unresponsive server."""

from __future__ import annotations

from functools import partial

from pyiceberg.catalog.rest import RestCatalog
from requests import Session

from sinks.iceberg.catalog import ANSWER_SECONDS, CONNECT_SECONDS


class TimedRestCatalog(RestCatalog):
    """A REST catalog with time limits. The catalog's property `py-catalog-impl` names this class."""

    def _create_session(self) -> Session:
        session = super()._create_session()
        # The library has no setting for time limits, and creates the session itself.
        session.request = partial(session.request, timeout=(CONNECT_SECONDS, ANSWER_SECONDS))  # type: ignore[method-assign]
        return session
