"""Sums of the scores' gradients, for what many pairs share: tables of distances, and masks."""
