"""Attention classes judged by what they do and not by their names."""
