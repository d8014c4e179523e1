"""The device library in Triton, twin of the headers in diglot/include."""
