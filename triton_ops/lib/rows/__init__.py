"""Rows of arrays, reduced and then mapped: operation.py has the concept, rows.py the driver."""
