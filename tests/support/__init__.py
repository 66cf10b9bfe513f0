"""How tests draw, make and judge a call, and start the tool and processes."""
