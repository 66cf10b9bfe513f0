"""Positions: what the registry says of schemes, and their classes."""
