"""Calls of which one says what another must give."""
