"""What hides pairs beside intervals of keys, a file each: a NamedTuple of what kernels read, and a
function

    mask(s, visible, mask, at) -> (s, visible)

of the scores of a tile in log2 units and of which of its pairs are seen so far. A mask may add to
the scores, after softcap."""
