"""Version 1 of the wire's messages, generated from proto/ by `make proto`."""
