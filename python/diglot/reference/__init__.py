"""Backend "torch": every op's launchers in plain PyTorch, and its oracle in float64."""
