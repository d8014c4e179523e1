"""Device library in Triton, the twin of the headers in diglot/include: mathematics by function."""
