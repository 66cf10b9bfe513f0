"""Programs: the tool, the lab, the benches."""
