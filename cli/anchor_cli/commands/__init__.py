"""The commands of `anchor`, one file for each, named as people type it."""
