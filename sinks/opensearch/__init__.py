"""OpenSearch: the Elasticsearch sink, with a client for OpenSearch."""
