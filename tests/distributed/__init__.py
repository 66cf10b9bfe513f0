"""relpos.distributed on several processes."""
