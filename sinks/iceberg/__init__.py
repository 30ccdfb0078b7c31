"""The warehouse: Iceberg tables through any catalog. State and DDL by pyiceberg; rows are moved by Spark."""
