"""The command line `anchor`: open, ask, render.

main      the app: registers the commands, turns an error into one line and an exit code
exits     the exit codes
files     writes the file of -o as a whole, or not at all
progress  a progress bar for long work
spools    names the spools that still wait for a run

commands      serve, runs, names, pull, hist, stats, …: one file for each command
arguments     options that several commands share: --step, --pass, …; amounts, shell completion
terminal      the width of the screen; tables, trees and sentences on it
records       selects the records that a command is asked about, tells gaps, writes file formats
histograms    the histograms of `hist`, as text, JSON, CSV, PNG and HTML
comparisons   a comparison for a terminal, as rows, and for CI
exports       the writers of `export`: zarr, TensorBoard, MLflow, Weights & Biases
imports       reads the dump folders of `import`
checkups      the checks of `doctor`
collector     the settings, the token and the signals of `serve`

Data goes to stdout, messages to stderr. Heavy imports stay inside the commands, so that `--help`
and completion answer at once.
"""
