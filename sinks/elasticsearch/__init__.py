"""Elasticsearch: one alias per table over the index of the generation that serves."""
