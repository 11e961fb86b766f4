"""The commands of `anchor`, a file each, named as people type them."""
