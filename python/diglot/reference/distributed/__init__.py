"""Launchers of `diglot.distributed` in terms of torch.distributed."""
