"""What documents, types and packages say, true to the letter."""
