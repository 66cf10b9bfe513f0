"""What a call of relpos promises, whatever its position."""
