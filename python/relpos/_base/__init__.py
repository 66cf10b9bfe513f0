"""What positions and calls stand on: checks of arguments, and how operators are defined."""
