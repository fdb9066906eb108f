"""How the commands start and print: no mathematics, but every command needs it."""
