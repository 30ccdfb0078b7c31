"""The client of Elasticsearch, and of OpenSearch, whose API is a fork of Elasticsearch 7.10's.

Most requests are the same for both servers. `OpenSearchClient` holds what differs, so that all other modules are
shared. The Elasticsearch client refuses any other server by its headers, so a node of the transport replaces them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import ClassVar, Final

import msgspec
from elastic_transport import HttpHeaders, NodeConfig, Urllib3HttpNode
from elastic_transport._node import NodeApiResponse
from elastic_transport.client_utils import DEFAULT, DefaultType
from elasticsearch import Elasticsearch

#: `application/vnd.elasticsearch+json; compatible-with=8`. OpenSearch knows only `application/json`.
_COMPATIBLE: Final = re.compile(r"vnd\.elasticsearch\+([\w-]+);\s*compatible-with=\d+")

_JSON: Final = {"accept": "application/json", "content-type": "application/json"}


class _Opened(msgspec.Struct):
    id: str = ""
    pit_id: str = ""


class _Shards(msgspec.Struct):
    number: str = msgspec.field(name="index.number_of_shards")


class _Settings(msgspec.Struct):
    settings: _Shards


_decode_opened = msgspec.json.Decoder(_Opened).decode
_decode_settings = msgspec.json.Decoder(dict[str, _Settings]).decode


class AnyNameNode(Urllib3HttpNode):
    """A node without a check of the host name. urllib3 would otherwise check it even if the TLS context does not."""

    def __init__(self, config: NodeConfig) -> None:
        super().__init__(config)
        self.pool.assert_hostname = False  # type: ignore[attr-defined]


class OpenSearchNode(Urllib3HttpNode):
    """A node that sends plain media types, and reports the header by which the client recognises its server."""

    def perform_request(
        self,
        method: str,
        target: str,
        body: bytes | None = None,
        headers: HttpHeaders | None = None,
        request_timeout: DefaultType | float | None = DEFAULT,
    ) -> NodeApiResponse:
        plain = {name: _COMPATIBLE.sub(r"\1", value) for name, value in (headers or {}).items()}
        answer = super().perform_request(method, target, body, HttpHeaders(plain), request_timeout)
        answer.meta.headers = HttpHeaders({**answer.meta.headers, "x-elastic-product": "Elasticsearch"})
        return answer


class AnyNameOpenSearchNode(OpenSearchNode, AnyNameNode):
    """Both."""


class SearchClient(Elasticsearch):
    """Elasticsearch's client."""

    product: ClassVar[str] = "Elasticsearch"
    oldest: ClassVar[tuple[int, int]] = (8, 0)
    has_privileges_api: ClassVar[bool] = True
    node: ClassVar[type[Urllib3HttpNode]] = Urllib3HttpNode
    any_name_node: ClassVar[type[Urllib3HttpNode]] = AnyNameNode
    #: The order of documents in a point in time. It is unique within each of `open_points`.
    point_order: ClassVar[str] = "_shard_doc"

    def open_points(self, index: str, keep_alive: str) -> list[str]:
        """Open points in time that together show the whole index. The client must return raw bytes."""
        return [_decode_opened(self.open_point_in_time(index=index, keep_alive=keep_alive).body).id]

    def close_points(self, points: list[str]) -> None:
        """Close the points in time. No error if they are gone."""
        for point in points:
            self.options(ignore_status=404).close_point_in_time(id=point)


class OpenSearchClient(SearchClient):
    """OpenSearch's.

    OpenSearch 2 has no sort order that is unique over the shards of a point in time. So each shard has its own.
    """

    product: ClassVar[str] = "OpenSearch"
    oldest: ClassVar[tuple[int, int]] = (2, 4)
    has_privileges_api: ClassVar[bool] = False
    node: ClassVar[type[Urllib3HttpNode]] = OpenSearchNode
    any_name_node: ClassVar[type[Urllib3HttpNode]] = AnyNameOpenSearchNode
    point_order: ClassVar[str] = "_doc"

    def open_points(self, index: str, keep_alive: str) -> list[str]:
        return list(self._opened(index, keep_alive))

    def close_points(self, points: list[str]) -> None:
        self.options(ignore_status=404).perform_request(
            "DELETE", "/_search/point_in_time", headers=_JSON, body={"pit_id": points}
        )

    def _opened(self, index: str, keep_alive: str) -> Iterator[str]:
        found = self.indices.get_settings(index=index, name="index.number_of_shards", flat_settings=True).body
        (settings,) = _decode_settings(found).values()
        for shard in range(int(settings.settings.number)):
            answer = self.perform_request(
                "POST",
                f"/{index}/_search/point_in_time",
                params={"keep_alive": keep_alive, "preference": f"_shards:{shard}"},
                headers={"accept": "application/json"},
            ).body
            yield _decode_opened(answer).pit_id
