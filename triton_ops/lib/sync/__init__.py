"""How programs wait for each other: a barrier across a grid, and mailboxes."""
