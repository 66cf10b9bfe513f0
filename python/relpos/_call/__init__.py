"""Calls: options, operators and their derivatives, and the functions that make them."""
