"""The dashboard and its metrics under test."""
