"""Products of matrices: the order of tiles, and how a program multiplies them."""
