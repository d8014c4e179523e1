"""Old name of sync/mailbox.py, kept for one release."""

from .sync.mailbox import *  # noqa: F403
