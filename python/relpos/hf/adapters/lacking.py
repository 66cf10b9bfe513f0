"""Attention classes whose positions are a scheme of relpos, but which no adapter runs on it."""

LACKING: dict[str, str] = {}
