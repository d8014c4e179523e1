"""Rows of arrays, reduced and then mapped. operation.py is the concept, rows.py the driver."""
