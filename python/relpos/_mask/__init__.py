"""Masks by tiles: which keys queries see, a word of 64 bits for a row and a tile."""
