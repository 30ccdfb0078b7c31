"""Writing rows to Elasticsearch: documents, external versions, bulk requests."""
