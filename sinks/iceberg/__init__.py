"""The Iceberg sink: tables in any Iceberg catalog. pyiceberg handles state and DDL. Spark writes the rows."""
