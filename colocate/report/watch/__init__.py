"""``colocate watch``: the report of a run or of a multirun in a browser, while it grows."""
