"""The terms of a call, as relpos._core.lower says them."""
