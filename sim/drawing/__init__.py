"""How every picture looks: its style, and axes that reach zero and infinity."""
