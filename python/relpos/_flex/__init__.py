"""FlexAttention's functions of pairs, lowered to positions, masks and options of relpos."""
