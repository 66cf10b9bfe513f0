"""relpos.hf and the models it fuses."""
