"""Device library in Triton: the twins, function for function, of the headers in diglot/include."""
