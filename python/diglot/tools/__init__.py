"""Instruments that are built on the ops: compare, inspect, measure, plot."""
