"""A tile of pairs within a kernel: products, scores, softmax, dropout, and which of it is seen."""
