"""Small faults planted in the sources, to see that tests find them: `make mutants`."""
