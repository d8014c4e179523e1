"""What is built on the ops: compare, inspect, measure, plot."""
