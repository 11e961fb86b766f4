"""The folder that `anchor run` puts first on PYTHONPATH, for the `sitecustomize` in it."""
