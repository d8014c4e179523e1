"""Arrays in host memory through a GPU, in chunks: copies and compute at the same time."""
