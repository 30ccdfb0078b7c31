"""OpenSearch as a store. It shares Elasticsearch's code: `sinks.elasticsearch.clients` holds what differs."""

from __future__ import annotations

from typing import ClassVar

from sinks.elasticsearch.scan import ElasticsearchScan
from sinks.elasticsearch.store import ElasticsearchStore


class OpenSearchStore(ElasticsearchStore):
    """One configured OpenSearch store."""

    kind: ClassVar[str] = "opensearch"


class OpenSearchScan(ElasticsearchScan):
    """Reads and repairs one generation of an OpenSearch store for the audit."""
