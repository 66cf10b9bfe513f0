"""Tables of rows: what a call says of them, their launches, and chunks of its queries."""
