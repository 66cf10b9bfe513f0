"""Each scheme against its formula."""
