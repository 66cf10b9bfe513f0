"""The terms of the equation, a file each: a NamedTuple of what kernels read, and a function

    score(s, term, at, distances) -> s

that adds a term to scores s of a tile in log2 units; `at` and `distances` are those of pair_scores.
The kernels take a tuple of terms and a tuple of their functions, and know no term."""
