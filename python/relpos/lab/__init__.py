"""Train short, test long: one small Transformer per position scheme, on the same batches.

`relpos lab` and `python -m relpos.lab` run it; `cli.py` says in which order.
"""
