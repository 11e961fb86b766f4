"""The folder that `anchor run` puts first on PYTHONPATH, for its `sitecustomize`."""
