"""Backend "triton": every op's kernels and launchers in Triton, and the device library `lib`."""
