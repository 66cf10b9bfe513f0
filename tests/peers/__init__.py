"""relpos beside code of others: models, packages, notebooks, functions of torch."""
