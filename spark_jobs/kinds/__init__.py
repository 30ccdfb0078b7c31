"""The ways in which Spark jobs write stores: row by row, and whole tables of a warehouse."""
