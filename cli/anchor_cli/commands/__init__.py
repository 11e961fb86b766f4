"""The commands of `anchor`: one file for each command, which bears the command's name."""
